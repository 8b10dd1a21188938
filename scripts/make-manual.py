#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the man page and the completion for bash from the binary's own help: scripts/make-manual.py ZTRAIN DIR

Reads `ZTRAIN --help`, `ZTRAIN COMMAND --help`, scripts/spec-pages.py and the table of docs/environment.md; writes DIR/man/man1/ztrain.1 and DIR/bash-completion/completions/ztrain. `make manual` and `make install`
call it, so both are as new as the binary.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# ---- what the binary has ---------------------------------------------------------------------------------------------

def ask(ztrain, *arguments):
    return subprocess.run([ztrain, *arguments], stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True).stdout


def read_help(text):
    """{intro, usage: [(line, text)], options: [(name, value or None, text)], exit_codes: [(code, text)]} of --help."""
    intro, rest = text.split("\n\n", 1)
    usage_text, rest = rest.split("\noptions:\n", 1)
    option_text, exit_text = rest.split("\n\nexit codes: ", 1)
    usage = []
    for line in usage_text.rstrip().split("\n"):
        found = re.match(r"  (ztrain .*?)(?:   +(\S.*))?$", line)
        if found:
            usage.append((found[1].strip(), found[2] or ""))
        else:  # the text of a line that was too long for it
            usage[-1] = (usage[-1][0], line.strip())
    options = []
    for line in option_text.split("\n"):
        found = re.match(r"  --([a-z-]+)(?: ([A-Z=]+))? +(\S.*)$", line)
        options.append((found[1], found[2], found[3]))
    exit_codes = [part.split(" ", 1) for part in re.split(r",\s+(?=\d)", " ".join(exit_text.split()))]
    return {"intro": intro.strip(), "usage": usage, "options": options, "exit_codes": exit_codes}


def table_rows(lines):
    """The cells of the rows of a Markdown table, without its head and without code marks and links."""
    for line in lines:
        if line.startswith("|") and not line.startswith("|---"):
            cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
            yield [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", c).replace("`", "").replace("\\|", "|") for c in cells]


def read_keys(markdown):
    """[(section, its help, [(key, value)])] of the pages that scripts/spec-pages.py prints."""
    sections = []
    for section in markdown.split("\n## ")[1:]:
        title, _, about, *lines = section.split("\n")
        if "| key | value | default | resume | |" in lines:
            sections.append((title, about, [(row[0], row[1]) for row in table_rows(lines) if row[0] != "key"]))
    return sections


def read_environment():
    """[(variable, text)] of docs/environment.md."""
    with open(os.path.join(ROOT, "docs", "environment.md"), encoding="utf-8") as f:
        return [(row[0], row[1]) for row in table_rows(f.read().split("\n")) if row[0] != "variable"]


# ---- the man page ----------------------------------------------------------------------------------------------------

def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    text = "".join(c if ord(c) < 128 else f"\\[u{ord(c):04X}]" for c in text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def bold(text):
    return f"\\fB{roff(text)}\\fR"


def without_options(text, help_):
    """A command's help without its list of options, if all of them are in the page's OPTIONS."""
    general = {name for name, _, _ in help_["options"]}
    return re.sub(r"^options:\n(?:  .*\n)+\n?",
                  lambda found: "" if set(re.findall(r"^  --([a-z-]+)", found[0], flags=re.M)) <= general else found[0], text, flags=re.M)


def man_page(version, help_, commands, sections, environment):
    out = [f'.TH ZTRAIN 1 "" "ztrain {roff(version)}" "User Commands"', ".nh", ".ad l", ".SH NAME",
           "ztrain \\- train causal language models, sharded over ranks", ".SH SYNOPSIS", ".nf"]
    out += [bold(line) for line, _ in help_["usage"]]
    out += [".fi", ".SH DESCRIPTION", roff(help_["intro"]), ".PP",
            "Without a command, ztrain trains the model that the run spec describes. Everything of the run is in its run "
            "folder; SIGTERM, SIGINT and SIGUSR1 end it with a checkpoint, from which", bold("--resume"), "continues.",
            ".SH COMMANDS"]
    for name, text in commands:
        out += [f".SS {roff(name)}"]
        if text is None:
            out += [roff("; ".join(words for line, words in help_["usage"] if line.split()[1] == name))]
        else:
            out += [".nf", roff(without_options(text + "\n", help_).strip()), ".fi"]
    out += [".SH OPTIONS"]
    for name, value, text in help_["options"]:
        out += [".TP", bold("--" + name) + (f" \\fI{roff(value)}\\fR" if value else ""), roff(text)]
    out += [".SH RUN SPEC", "A YAML file. a.b stands for key b in section a;", bold("--set"),
            roff("a.b=VALUE overrides it."), bold("ztrain --help-spec"),
            "explains each key; docs/run\\-spec.md has what a resumed run may change. The sections and their keys:"]
    for title, about, rows in sections:
        names = [key.removeprefix(title + ".") for key, _ in rows]
        out += [".TP", bold(title), roff(about), ".br", ", ".join(bold(name) for name in names)]
    out += [".SH FILES", ".TP", roff("<run.dir>/<run.name>/"),
            roff("The run folder: metrics.jsonl, log/, checkpoints/, run.yaml (the effective run spec). See docs/run-folder.md.")]
    out += [".SH EXIT STATUS"]
    for code, text in help_["exit_codes"]:
        out += [".TP", bold(code), roff(text)]
    out += [".SH ENVIRONMENT"]
    for name, text in environment:
        out += [".TP", bold(name), roff(text)]
    out += [".SH SEE ALSO", "README.md and docs/README.md in share/doc/ztrain;", ".BR srun (1),", ".BR sbatch (1)"]
    return "\n".join(out) + "\n"


# ---- completion ------------------------------------------------------------------------------------------------------

COMPLETION = r'''# Completion of ztrain for bash; made by scripts/make-manual.py.
_ztrain() {
    local line=${COMP_LINE:0:COMP_POINT} words current before command='' word i
    local commands=@COMMANDS@ options=@OPTIONS@ keys=@KEYS@
    # Words end at blanks here; in COMP_WORDS they end at '=' as well.
    read -ra words <<<"$line"
    case $line in *[[:space:]]) current='' ;; *) current=${words[-1]} && unset 'words[-1]' ;; esac
    before=${words[-1]}
    case $current in --*=*) before=${current%%=*} current=${current#*=} ;; esac
    for word in $commands; do
        [ "${words[1]-}" != "$word" ] || command=$word
    done
    COMPREPLY=()
    case $command in
@COMMAND_OPTIONS@
    esac
    case $before in
    --set)
        case $current in
        *=*)
            word=''
            case ${current%%=*} in
@VALUES@
            esac
            mapfile -t COMPREPLY < <(compgen -W "$word" -P "${current%%=*}=" -- "${current#*=}")
            ;;
        *)
            mapfile -t COMPREPLY < <(compgen -W "$keys" -S = -- "$current")
            compopt -o nospace
            ;;
        esac
        ;;
    --config) mapfile -t COMPREPLY < <(compgen -f -X '!*.yaml' -- "$current"; compgen -f -X '!*.yml' -- "$current"; compgen -d -- "$current") && compopt -o filenames ;;
    --deepspeed) mapfile -t COMPREPLY < <(compgen -f -X '!*.json' -- "$current"; compgen -d -- "$current") && compopt -o filenames ;;
    --resume | --out) mapfile -t COMPREPLY < <(compgen -d -- "$current") && compopt -o filenames ;;
    --dtype) mapfile -t COMPREPLY < <(compgen -W "fp32 bf16" -- "$current") ;;
    --device) mapfile -t COMPREPLY < <(compgen -W @DEVICES@ -- "$current") ;;
    --assume) mapfile -t COMPREPLY < <(compgen -W @ASSUMPTIONS@ -- "$current") ;;
@UNKNOWN@) ;;
    *)
        if [[ $current == -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
        elif [ -n "$command" ]; then
            mapfile -t COMPREPLY < <(compgen -d -- "$current") && compopt -o filenames
        elif [ ${#words[@]} = 1 ]; then
            mapfile -t COMPREPLY < <(compgen -W "$commands $options" -- "$current")
        fi
        ;;
    esac
    # The text before a '=' is not part of the word that bash replaces.
    if [[ $COMP_WORDBREAKS == *=* && $before == --set && $current == *=* ]]; then
        for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#*=}; done
    fi
}
complete -F _ztrain ztrain
'''


def quoted(words):
    return "'" + " ".join(words) + "'"


def completion(help_, commands, sections):
    all_options = ["--" + name for name, _, _ in help_["options"]]
    command_options, values = [], []
    for name, text in commands:
        if text is not None:
            listed = re.findall(r"^  (--[a-z-]+)", text, flags=re.M) or re.findall(r"--[a-z][a-z-]+", text)
            own = sorted(set(listed) | {"--help"})
            command_options.append(f"    {name}) options={quoted(own)} ;;")
    keys = [row for _, _, rows in sections for row in rows]
    for key, value in keys:
        value = value.replace(", or auto", ", auto")
        if re.fullmatch(r"\w+(, \w+)+", value):
            values.append(f"            {key}) word={quoted(value.split(', '))} ;;")
    unknown = " | ".join("--" + name for name, value, _ in help_["options"] if value in ("N", "RATE", "SIZE"))
    device = next(text for name, _, text in help_["options"] if name == "device")
    devices = [word.split()[0] for word in device.rsplit(": ", 1)[1].split(", ")]
    assumptions = re.findall(r"^  ([a-z0-9-]+)  ", dict(commands)["plan"].split("\nwords of --assume", 1)[1], flags=re.M)
    text = COMPLETION
    for mark, words in (("@COMMANDS@", quoted(name for name, _ in commands)), ("@OPTIONS@", quoted(all_options)),
                        ("@KEYS@", quoted(key for key, _ in keys)), ("@COMMAND_OPTIONS@", "\n".join(command_options)),
                        ("@VALUES@", "\n".join(values)), ("@UNKNOWN@", "    " + unknown),
                        ("@DEVICES@", quoted(devices)), ("@ASSUMPTIONS@", quoted(assumptions))):
        text = text.replace(mark, words)
    return text


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def main():
    if len(sys.argv) != 3:
        sys.exit("make-manual.py: two arguments are needed; hint: scripts/make-manual.py ZTRAIN DIR")
    ztrain, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    whole = ask(ztrain, "--help")
    help_ = read_help(whole)
    names = list(dict.fromkeys(line.split()[1] for line, _ in help_["usage"] if not line.split()[1].startswith("-")))
    texts = [(name, ask(ztrain, name, "--help")) for name in names]
    commands = [(name, None if text == whole else text) for name, text in texts]
    sections = read_keys(ask(sys.executable, os.path.join(ROOT, "scripts", "spec-pages.py"), ztrain))
    version = ask(ztrain, "version").split()[1]
    write(os.path.join(folder, "man", "man1", "ztrain.1"), man_page(version, help_, commands, sections, read_environment()))
    write(os.path.join(folder, "bash-completion", "completions", "ztrain"), completion(help_, commands, sections))


if __name__ == "__main__":
    main()
