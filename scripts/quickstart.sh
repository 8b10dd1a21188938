#!/usr/bin/env bash
# From a fresh machine to a trained and exported model, in a few minutes: scripts/quickstart.sh (or: make quickstart)
#
# Installs missing packages, builds build/ztrain, turns text that is on this machine into token shards (nothing is
# downloaded), trains a small Llama-style model on two CPU ranks (configs/quickstart.yaml: ZeRO stage 3, bf16, two epochs
# with evaluation), interrupts the run once and resumes it, verifies its checkpoints, and exports a Hugging Face folder.
# All its files are in build/quickstart, which a second run deletes first. Where there is an nvcc, the build has the CUDA
# device, which takes minutes more; CUDA=0 scripts/quickstart.sh leaves it out.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

case ${1-} in
"") ;;
-h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit ;;
*) echo "quickstart.sh: unknown option '$1'; hint: see --help" >&2 && exit 2 ;;
esac

cd "$(dirname "$0")/.."

top=build/quickstart
text=$top/text
run=$top/runs/quickstart
ztrain=build/ztrain
text_bytes=240000

# say PART DURATION: announces a part with its duration on two free cores (busy ones take about twice as long) and the time so far
say() { printf '\n==> %s (%s; %d:%02d so far)\n' "$1" "$2" $((SECONDS / 60)) $((SECONDS % 60)); }

# Files of the program that are compiled with the present settings.
count_compiled() { find build/obj/{core,gpu,comm,ckpt,cmd} -name '*.o' -newer build/settings 2>/dev/null | wc -l; }

# Builds, and shows how far that is: on a terminal in one line, else in a line every 20 seconds.
build() {
    local counts all cuda progress second=0 status=0
    counts=$(make -s --no-print-directory count-objects)
    read -r all cuda <<<"$counts"
    [ "$cuda" = 0 ] || echo "with the CUDA device: $cuda of the $all files take nvcc minutes; CUDA=0 scripts/quickstart.sh leaves it out"
    while sleep 1 && kill -0 $$; do
        second=$((second + 1))
        if [ -t 1 ]; then
            printf '\r%d of %d files compiled; %d:%02d' "$(count_compiled)" "$all" $((second / 60)) $((second % 60))
        elif [ $((second % 20)) = 0 ]; then
            echo "$(count_compiled) of $all files compiled"
        fi
    done 2>/dev/null &
    progress=$!
    # In the foreground, where Ctrl-C ends it. More jobs than cores: next to other programs the compiler gets its share.
    make -s -j$((2 * $(nproc))) || status=$?
    kill $progress
    wait $progress 2>/dev/null || true
    [ ! -t 1 ] || echo
    return $status
}

say "1. packages" "a minute or two if some are missing, else a second"
scripts/install-deps.sh

say "2. build" "about a minute, with CUDA several, or a second if it is built already"
build
$ztrain version | head -1

say "3. text -> token shards" "a few seconds"
rm -rf "$top"
mkdir -p "$text" "$top/data"

# Manual pages without most of their markup, each cut so that no single page fills the collection.
manual_pages() {
    find -L /usr/share/man/man[1-8] -name '*.gz' -size +2k 2>/dev/null | sort | while read -r page; do
        { zcat "$page" 2>/dev/null || true; } | head -c 30000 | sed -e "/^[.']\\\\\"/d" \
            -e "s/^[.'][A-Za-z]* *//" -e 's/\\f\[[^]]*\]//g' -e 's/\\f(..//g' -e 's/\\f.//g' \
            -e 's/\\-/-/g' -e 's/\\[&/]//g' -e 's/\\(../ /g'
        echo
    done
}
other_files() {
    find -L /usr/include /usr/share/doc /usr/share/common-licenses -type f \( -name '*.h' -o -name copyright -o -path '*licenses*' \) \
        -size +2k 2>/dev/null | sort | while read -r file; do
        head -c 30000 "$file"
        echo
    done
}
# head ends the search when there is enough text, so the interrupted commands have not failed.
{ manual_pages || true; } 2>/dev/null | head -c $text_bytes >"$text/manual.txt" || true
have=$(wc -c <"$text/manual.txt")
if [ "$have" -lt $text_bytes ]; then
    { other_files || true; } 2>/dev/null | head -c $((text_bytes - have)) >"$text/other.txt" || true
fi
if [ "$(cat "$text"/*.txt | wc -c)" -lt 100000 ]; then
    echo "quickstart.sh: there is too little text on this machine; hint: put text files into /usr/share/doc" >&2
    exit 1
fi
python3 scripts/tokenize.py "$text"/*.txt --output "$top/data/text" --tokenizer byte --document paragraph --validation 0.04

say "4. training on two ranks; after 30 steps it is asked to stop, as a batch system would" "about 10 seconds"
started=$SECONDS
$ztrain --config configs/quickstart.yaml --local-gpus 2 &
pid=$!
trap 'kill -TERM $pid 2>/dev/null || true' EXIT
until [ "$(grep -cs '"loss"' "$run/metrics.jsonl" || true)" -ge 30 ] 2>/dev/null || ! kill -0 $pid 2>/dev/null; do
    sleep 0.2
done
code=0
kill -USR1 $pid 2>/dev/null || true
wait $pid || code=$?
trap - EXIT
[ $code = 75 ] || { echo "quickstart.sh: the interrupted run ended with exit code $code, 75 expected" >&2 && exit 1; }
echo "stopped with exit code 75: a checkpoint is written, and the run can be resumed"

say "5. resuming from there" "about half a minute"
$ztrain --config configs/quickstart.yaml --local-gpus 2 --resume "$run"
echo "trained for $((SECONDS - started)) s"

say "6. verifying and exporting" "a second"
$ztrain verify "$run"
$ztrain export "$run" --out "$top/hf" --dtype bf16

say "7. the result" "a second"
python3 - "$run/metrics.jsonl" <<'PYTHON'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as f:
    rows = [json.loads(line) for line in f]
steps = [row for row in rows if "loss" in row]
evaluations = [row for row in rows if "eval_loss" in row]
if [row["step"] for row in steps] != list(range(1, len(steps) + 1)):
    sys.exit("quickstart.sh: metrics.jsonl lacks steps or has some twice")
print(f"{'step':>6} {'loss':>8}")
for row in steps[:1] + steps[len(steps) // 4::max(1, len(steps) // 4)] + steps[-1:]:
    print(f"{row['step']:6d} {row['loss']:8.4f}")
for row in evaluations:
    print(f"evaluation after step {row['step']:4d}: loss {row['eval_loss']:.4f}, perplexity {row['perplexity']:.2f}")
if not evaluations[-1]["eval_loss"] < steps[0]["loss"] - 1:
    sys.exit("quickstart.sh: the loss did not fall")
PYTHON
printf '\neverything took %d:%02d\n' $((SECONDS / 60)) $((SECONDS % 60))

cat <<TEXT

the run          $run/  (run.yaml, metrics.jsonl, log/)
checkpoints      $run/checkpoints/  (latest -> $(readlink "$run/checkpoints/latest"))
the model        $top/hf/  (config.json and safetensors: loads in transformers)
the run spec     configs/quickstart.yaml

Next:
  $ztrain --help-spec                   every key of a run spec
  $ztrain inspect $run
  scripts/tokenize.py --help            your own text, jsonl or csv as token shards
  configs/agnews-gpt2.yaml              fine-tuning a published model
  README.md, docs/README.md             everything else
TEXT
