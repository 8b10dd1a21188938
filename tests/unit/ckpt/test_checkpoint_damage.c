/* SPDX-License-Identifier: Apache-2.0 */
/* test_checkpoint_damage.c: any damage to a checkpoint's files is found and reported with file and offset, and content
 * with right checksums that is inconsistent is refused. */
#include "tests/unit/fixtures/checkpoint_case.h"
#include "tests/unit/fixtures/rankfile_range.h"
#include "tests/unit/fixtures/sample.h"

#include "ckpt/manifest.h"
#include "ckpt/rankfile.h"

#include <xxhash.h>
#include <zstd.h>

/* A checkpoint of two ranks with a tokenizer file. */
static void make_checkpoint(int level, char path[FS_PATH_MAX])
{
    char source[FS_PATH_MAX], file[FS_PATH_MAX];
    case_path(source, "source");
    assert_true(mkdir(source, 0777) == 0 || errno == EEXIST);
    case_path(file, "source/vocab.json");
    case_write(file, "{\"a\": 1, \"b\": 2}", 16);
    struct case_save how = {.world = 2, .step = 4, .level = level, .tokenizer_dir = source};
    case_save_ok(&how, path);
}

static const char *const files[] = {"rank-00000.zst", "rank-00001.zst", "vocab.json", "manifest.json"};

/* Full verification fails and names the file, with `what` in the message. */
static void expect_found(const char *path, const char *file, const char *what, const char *how, int64_t where)
{
    struct checkpoint *checkpoint;
    struct error err = {0};
    char name[80];
    snprintf(name, sizeof name, "/%s'", file);
    if (checkpoint_open(path, true, &checkpoint, &err) == STATUS_OK)
        fail_msg("%s of %s at %" PRId64 " was not found", how, file, where);
    if (err.code != STATUS_CHECKPOINT || !strstr(err.text, name) || !strstr(err.text, what))
        fail_msg("%s of %s at %" PRId64 ": %s", how, file, where, err.text);
}

static void test_every_flipped_byte(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], file[FS_PATH_MAX];
    for (int level = 0; level <= 3; level += 3) {
        make_checkpoint(level, path);
        for (size_t f = 0; f < COUNT_OF(files); f++) {
            size_t bytes;
            assert_int_equal(fs_join(file, path, files[f], STATUS_BUG, NULL), STATUS_OK);
            char *data = case_read(file, &bytes);
            int fd = open(file, O_WRONLY);
            assert_true(fd >= 0);
            for (size_t at = 0; at < bytes; at += sample_distance(29)) {
                char flipped = (char)(data[at] ^ (1 << (at % 8)));
                assert_int_equal(pwrite(fd, &flipped, 1, (off_t)at), 1);
                expect_found(path, files[f], "at offset ", "a flipped bit", (int64_t)at);
                assert_int_equal(pwrite(fd, &data[at], 1, (off_t)at), 1);
            }
            close(fd);
            free(data);
        }
        case_load_ok(path, false, 1, 4); /* it is whole again */
    }
}

/* The lowest of several shares that finds a fault has the message of a verification as a whole. */
static void test_shares_find_what_the_whole_finds(void **unused)
{
    (void)unused;
    static const int parts[] = {2, 3, 5, 64};
    char path[FS_PATH_MAX], file[FS_PATH_MAX];
    make_checkpoint(0, path);
    for (size_t f = 0; f < 2 * 3 + 1; f++) { /* at three places of each rank's file, and in the tokenizer's */
        size_t bytes;
        assert_int_equal(fs_join(file, path, files[f / 3], STATUS_BUG, NULL), STATUS_OK);
        char *data = case_read(file, &bytes);
        size_t at = f == 6 ? bytes / 2 : f % 3 == 0 ? 100 : f % 3 == 1 ? bytes / 2 : bytes - 1;
        struct checkpoint *checkpoint;
        struct error whole, share;
        data[at] ^= 1;
        case_write(file, data, bytes);
        assert_int_equal(checkpoint_open(path, false, &checkpoint, &whole), STATUS_OK);
        assert_int_equal(checkpoint_verify(checkpoint, &whole), STATUS_CHECKPOINT);
        for (size_t i = 0; i < COUNT_OF(parts); i++) {
            enum status status = STATUS_OK;
            for (int part = 0; part < parts[i] && status == STATUS_OK; part++)
                status = checkpoint_verify_part(checkpoint, part, parts[i], &share);
            if (status != STATUS_CHECKPOINT || strcmp(share.text, whole.text) != 0)
                fail_msg("%d shares: %s; as a whole: %s", parts[i], status ? share.text : "nothing", whole.text);
        }
        checkpoint_close(checkpoint);
        data[at] ^= 1;
        case_write(file, data, bytes);
        free(data);
    }
}

static void test_cut_zeroed_grown_missing(void **unused)
{
    (void)unused;
    static const size_t tails[] = {1, 7, 4096, 100000};
    char path[FS_PATH_MAX], file[FS_PATH_MAX];
    make_checkpoint(3, path);
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        size_t bytes;
        assert_int_equal(fs_join(file, path, files[f], STATUS_BUG, NULL), STATUS_OK);
        char *data = case_read(file, &bytes), *changed = calloc(1, bytes + 100000);
        for (size_t k = 0; k <= 40; k++) {
            size_t length = k == 40 ? bytes - 1 : bytes * k / 40;
            if (length == bytes) continue;
            case_write(file, data, length);
            expect_found(path, files[f], "at offset ", "a cut", (int64_t)length);
        }
        for (size_t k = 0; k < 30; k++) {
            size_t from = bytes * k / 30, n = bytes / 10 + 1;
            memcpy(changed, data, bytes);
            memset(changed + from, 0, from + n < bytes ? n : bytes - from);
            case_write(file, changed, bytes);
            expect_found(path, files[f], "at offset ", "a hole", (int64_t)from);
        }
        for (size_t k = 0; k < COUNT_OF(tails); k++) {
            memcpy(changed, data, bytes);
            memset(changed + bytes, '\n', tails[k]);
            case_write(file, changed, bytes + tails[k]);
            expect_found(path, files[f], "at offset ", "a tail", (int64_t)tails[k]);
        }
        assert_int_equal(remove(file), 0);
        struct checkpoint *checkpoint;
        struct error err;
        assert_int_equal(checkpoint_open(path, false, &checkpoint, &err), STATUS_CHECKPOINT);
        assert_non_null(strstr(err.text, files[f]));
        assert_int_equal(mkdir(file, 0777), 0); /* a folder in its place */
        assert_int_equal(checkpoint_open(path, false, &checkpoint, &err), STATUS_CHECKPOINT);
        assert_non_null(strstr(err.text, files[f]));
        assert_int_equal(rmdir(file), 0);
        case_write(file, data, bytes);
        free(data);
        free(changed);
    }
    case_load_ok(path, false, 2, 4);
}

/* A valid file that belongs to another checkpoint or another rank. */
static void test_files_of_others(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], other[FS_PATH_MAX], from[FS_PATH_MAX], to[FS_PATH_MAX];
    size_t bytes;
    struct case_save how = {.world = 2, .step = 4}, later = {.world = 2, .step = 5};
    case_save_ok(&how, path);
    case_save_ok(&later, other);
    assert_int_equal(fs_join(from, other, "rank-00001.zst", STATUS_BUG, NULL), STATUS_OK);
    assert_int_equal(fs_join(to, path, "rank-00001.zst", STATUS_BUG, NULL), STATUS_OK);
    char *data = case_read(from, &bytes); /* stored frames: the sizes agree */
    case_write(to, data, bytes);
    expect_found(path, "rank-00001.zst", "do not match the manifest's checksum", "a file", 0);
    assert_int_equal(fs_join(to, other, "rank-00000.zst", STATUS_BUG, NULL), STATUS_OK);
    case_write(to, data, bytes);
    expect_found(other, "rank-00000.zst", "another rank's", "a file", 0);
    free(data);
}

/* Damage that happens after the checkpoint was opened is found when the frame is read. */
static void test_damage_is_found_while_loading(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], file[FS_PATH_MAX];
    struct case_save how = {.world = 1, .step = 4, .level = 3, .large = true};
    struct tensor_table table;
    struct case_state state;
    struct checkpoint *checkpoint;
    struct error err;
    case_table(&table, true);
    case_state_init(&state, &table, 0, 1);
    case_save_ok(&how, path);
    assert_int_equal(fs_join(file, path, "rank-00000.zst", STATUS_BUG, NULL), STATUS_OK);
    int fd = open(file, O_WRONLY);
    assert_int_equal(pwrite(fd, "damage", 6, 1000000), 6);
    close(fd);
    assert_int_equal(checkpoint_open(path, false, &checkpoint, &err), STATUS_OK);
    assert_int_equal(checkpoint_load(checkpoint, &table, &state.layout, 0, case_slices(&state), &err),
                     STATUS_CHECKPOINT);
    assert_non_null(strstr(err.text, "(master, unit 2, elements from 262144) do not match their checksum"));
    float value; /* data elsewhere can be read */
    assert_int_equal(checkpoint_read(checkpoint, STATE_EXP_AVG, 2, 5, 1, &value, &err), STATUS_OK);
    float expected = case_value(STATE_EXP_AVG, 2, 5, 4);
    assert_memory_equal(&value, &expected, sizeof value);
    checkpoint_close(checkpoint);
    case_state_release(&state);
}

/* ---- right checksums, wrong content: the manifest ------------------------ */

/* One replacement in a manifest's text, and the words of its error. */
static const struct {
    const char *find, *put, *expected;
} forgeries[] = {
    {"\"format\": \"ztrain-checkpoint\"", "\"format\": \"zip\"", "format: expected 'ztrain-checkpoint', not 'zip'"},
    {"\"format_version\": 1", "\"format_version\": 6",
     "has format version 6; this ztrain reads versions 1, 2, 4 and 5"},
    {"\"format_version\": 1", "\"format_version\": 3",
     "has format version 3; this ztrain reads versions 1, 2, 4 and 5"},
    {"\"name\": \"head\",", "\"name\": \"head\", \"frozen\": true,", "units: 1 of 3 are frozen"},
    {"\"format_version\": 1", "\"format_version\": \"1\"", "format_version: expected an integer"},
    {"\"dtype\": \"bf16\"", "\"dtype\": \"int8\"", "dtype: expected fp32, bf16 or fp16, not 'int8'"},
    {"\"world\": 2", "\"world\": 0", "world: expected an integer from 1"},
    {"\"world\": 2", "\"world\": 100000", "files: 3 files for 100000 ranks"},
    {"\"world\": 2", "\"world\": 1", "cannot be a unit of"},
    {"\"exp_avg\",", "\"exp\",", "states: expected master, exp_avg, exp_avg_sq"},
    {"\"frame_elements\": 262144", "\"frame_elements\": 1", "frame_elements: expected an integer"},
    {"\"frame_elements\": 262144", "\"frame_elements\": 262144, \"moment_block\": 128",
     "moment_block: expected an integer from 256 to 256"},
    {"\"frame_elements\": 262144", "\"frame_elements\": 262144, \"moment_block\": 256",
     "units[0].slice: expected a multiple of 256"},
    {"\"spec\": {", "\"spec\": [{}], \"x\": {", "spec: expected an object"},
    {"\"model\": {", "\"model\": 1, \"x\": {", "model: expected an object"},
    {"\"step\": 4", "\"step\": -1", "position.step: expected an integer"},
    {"\"step\": 4", "\"step\": 99999999999999999999", "too big integer"},
    {"\"epoch_end\": false", "\"epoch_end\": 0", "position.epoch_end: expected true or false"},
    {"\"epoch_loss_sum\": ", "\"epoch_loss_sum\": \"x\", \"y\": ", "position.epoch_loss_sum: expected a number"},
    {"\"epoch_end\": false", "\"epoch_end\": false, \"mean_loss\": 3", "position.mean_loss: expected an object"},
    {"\"epoch_end\": false", "\"epoch_end\": false, \"mean_loss\": {\"mean\": [], \"steps\": 1}",
     "position.mean_loss.mean: expected a number"},
    {"\"epoch_end\": false", "\"epoch_end\": false, \"mean_loss\": {\"mean\": 2.5, \"steps\": 0}",
     "position.mean_loss.steps: expected an integer from 1"},
    {"\"numel\": 77", "\"numel\": 9007199254740993", "units[0].numel: expected an integer"},
    {"\"numel\": 77", "\"numel\": 200", "units[0].slice: 2 slices of 64 elements cannot be a unit of 200"},
    {"\"slice\": 64", "\"slice\": 9007199254740992", "cannot be a unit"},
    {"\"slice\": 64", "\"slice\": 2000000000000000", "more elements than a file can hold"},
    {"\"slice\": 64", "\"slice\": 0", "units[0].slice: expected an integer"},
    {"{\"name\": \"embedding\",", "{", "units[0].name: expected a string"},
    {"\"units\": [", "\"units\": [], \"x\": [", "units: expected a list"},
    {"\"shape\": [30]", "\"shape\": []", "tensors[1].shape: expected one to three dimensions"},
    {"\"shape\": [30]", "\"shape\": [1, 1, 1, 30]", "tensors[1].shape: expected one to three dimensions"},
    {"\"shape\": [30]", "\"shape\": [\"30\"]", "tensors[1].shape: the tensor does not fit"},
    {"\"shape\": [20, 10]", "\"shape\": [20, 11]", "tensors[2].shape: the tensor does not fit"},
    {"\"shape\": [20, 10]", "\"shape\": [4294967296, 4294967296]", "tensors[2].shape: the tensor does not fit"},
    {"\"unit\": 1, \"offset\": 64", "\"unit\": 1, \"offset\": 29", "tensors[2].offset: expected an integer from 30"},
    {"\"unit\": 2", "\"unit\": 3", "tensors[3].unit: expected an integer from 1 to 2"},
    {"\"unit\": 1, \"offset\": 64", "\"unit\": 0, \"offset\": 64", "tensors[2].unit: expected an integer from 1"},
    {"\"tensors\": [", "\"tensors\": {}, \"x\": [", "tensors: expected a list"},
    {"\"name\": \"rank-00001.zst\"", "\"name\": \"rank-00002.zst\"", "files[1].name: expected 'rank-00001.zst'"},
    {"\"name\": \"vocab.json\"", "\"name\": \"../vocab.json\"", "files[2].name: not the name of a file"},
    {"\"name\": \"vocab.json\"", "\"name\": \"/etc/passwd\"", "files[2].name: not the name of a file"},
    {"\"name\": \"vocab.json\"", "\"name\": \"manifest.json\"", "files[2].name: not the name of a file"},
    {"\"name\": \"vocab.json\"", "\"name\": \"\"", "files[2].name: not the name of a file"},
    {"\"name\": \"vocab.json\"", "\"name\": \"v\\u0000\"", "\\u0000"},
    {"\"bytes\": 16", "\"bytes\": -16", "files[2].bytes: expected an integer"},
    {"\"frames\": 9", "\"frames\": 10", "files[0].frames: expected an integer from 9 to 9"},
    {"\"index_checksum\": \"", "\"index_checksum\": \"0", "files[0].index_checksum: expected 16 hexadecimal digits"},
    {"\"frames\": 9, \"index_checksum\": \"", "\"frames\": 9, \"index_checksum\": \"0123456789abcdeF\", \"x\": \"",
     "files[0].index_checksum: expected 16 hexadecimal digits"},
    {"\"world\": 2", "\"world\": 2, \"adapter\": 3", "adapter: expected an object"},
    {"\"world\": 2", "\"world\": 2, \"adapter\": {}", "base: expected an object"},
    {"\"world\": 2", "\"world\": 2, \"base\": 3", "base: expected an object"},
    {"\"world\": 2", "\"world\": 2, \"adapter\": {}, \"base\": {\"seed\": 1}", "base.hash: expected a string"},
    {"\"world\": 2", "\"world\": 2, \"adapter\": {}, \"base\": {\"hash\": \"12\"}",
     "base.hash: expected 16 hexadecimal"},
    {"\"world\": 2", "\"world\": 2, \"adapter\": {}, \"base\": {\"hash\": \"0123456789abcdef\", \"folder\": 3}",
     "base.folder: expected a string"},
    {"\"world\": 2", "\"world\": 2, \"adapter\": {}, \"base\": {\"hash\": \"0123456789abcdef\", \"seed\": -1}",
     "base.seed: expected an integer"},
    {"{\n \"format\"", "[{\n \"format\"", "is damaged at offset"},
    {"\"world\": 2", "\"world\": 2, \"world\": 2", "is damaged at offset"},
};

/* Puts the right checksum into a manifest's text; the text's length does not change. */
static void seal(char *text, size_t bytes)
{
    char digits[17];
    assert_true(bytes > 20);
    snprintf(digits, sizeof digits, "%016" PRIx64, (uint64_t)XXH3_64bits(text, bytes - 20));
    memcpy(text + bytes - 20, digits, 16);
}

static void test_forged_manifests(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], file[FS_PATH_MAX];
    size_t bytes;
    struct manifest *manifest;
    struct error err;
    make_checkpoint(3, path);
    assert_int_equal(fs_join(file, path, "manifest.json", STATUS_BUG, NULL), STATUS_OK);
    char *data = case_read(file, &bytes), *text = malloc(bytes + 200);
    for (size_t i = 0; i < COUNT_OF(forgeries); i++) {
        const char *at = strstr(data, forgeries[i].find);
        if (!at) fail_msg("'%s' is not in the manifest", forgeries[i].find);
        size_t before = (size_t)(at - data), cut = strlen(forgeries[i].find), put = strlen(forgeries[i].put);
        memcpy(text, data, before);
        memcpy(text + before, forgeries[i].put, put);
        memcpy(text + before + put, at + cut, bytes - before - cut);
        seal(text, bytes - cut + put);
        err.text[0] = '\0';
        assert_int_equal(manifest_decode(text, bytes - cut + put, "m", &manifest, &err), STATUS_CHECKPOINT);
        if (!strstr(err.text, forgeries[i].expected)) fail_msg("%s: %s", forgeries[i].put, err.text);
    }
    for (size_t n = 0; n < 40; n++) /* too short for the checksum at its end */
        assert_int_equal(manifest_decode(data + bytes - n, n, "m", &manifest, &err), STATUS_CHECKPOINT);
    free(data);
    free(text);
}

/* ---- right checksums, wrong content: a rank file ------------------------- */

static const int64_t slices[] = {100, RANKFILE_FRAME_ELEMENTS + 5};
static const char *const state_names[] = {"one", "two"};
static const struct rankfile_shape shape = {1, 3, 2, 2, slices, state_names, NULL};

/* A rank file of slices of zeros, in memory; caller frees. */
static uint8_t *make_rank_file(const char *path, struct rankfile_facts *facts, struct error *err)
{
    struct rankfile_writer *writer;
    size_t bytes;
    float *zeros = calloc((size_t)slices[1], sizeof *zeros);
    remove(path);
    assert_int_equal(rankfile_writer_new(path, &shape, 3, &writer, err), STATUS_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(rankfile_writer_slice(writer, i / 2, i % 2, zeros, err), STATUS_OK);
    assert_int_equal(rankfile_writer_finish(writer, facts, err), STATUS_OK);
    rankfile_writer_free(writer);
    free(zeros);
    uint8_t *data = (uint8_t *)case_read(path, &bytes);
    assert_true(facts->bytes == (int64_t)bytes && facts->num_frames == 6);
    return data;
}

enum { TABLE_BYTES = 8 + 6 * 40, ENTRY = 40 };

static void seal_rank_file(const uint8_t *data, struct rankfile_facts *facts)
{
    uint8_t index[64 + TABLE_BYTES];
    memcpy(index, data, 64);
    memcpy(index + 64, data + facts->bytes - TABLE_BYTES, TABLE_BYTES);
    facts->index_checksum = XXH3_64bits(index, sizeof index);
}

static void test_forged_rank_files(void **unused)
{
    (void)unused;
    /* a number of 4 or 8 bytes in entry `entry` (or the header: -1, the table's head: -2) and the message */
    static const struct {
        int entry, at, width;
        uint64_t value;
        const char *expected;
    } lies[] = {
        {-1, 8, 4, 0x58585858, "it does not begin like a rank file"},
        {-1, 16, 4, 2, "has format version 2; this ztrain reads 1"},
        {-1, 20, 4, 0, "another rank's or another checkpoint's"},
        {-1, 24, 4, 4, "another rank's or another checkpoint's"},
        {-1, 40, 8, 7, "another rank's or another checkpoint's"},
        {-2, 0, 4, 0x184D2A50, "the frame table does not begin here"},
        {-2, 4, 4, 0, "the frame table does not begin here"},
        {0, 0, 4, 1, "the table names another frame than the one expected here"},
        {2, 4, 4, 0, "the table names another frame than the one expected here"},
        {2, 8, 8, 0, "the table names another frame than the one expected here"},
        {5, 16, 4, 6, "the table names another frame than the one expected here"},
        {0, 20, 4, 0, "a frame has an impossible offset or length"},
        {0, 20, 4, 0xffffffff, "a frame has an impossible offset or length"},
        {3, 24, 8, 0x7fffffffffffffff, "a frame has an impossible offset or length"},
        {5, 20, 4, 1, "bytes between the last frame and the table"},
        {5, 20, 4, 200000, "a frame has an impossible offset or length"},
    };
    char path[FS_PATH_MAX];
    struct rankfile_facts facts;
    struct rankfile *file;
    struct error err;
    case_path(path, "r");
    for (size_t i = 0; i < COUNT_OF(lies); i++) {
        uint8_t *data = make_rank_file(path, &facts, &err);
        uint8_t *table = data + facts.bytes - TABLE_BYTES;
        uint8_t *base = lies[i].entry == -1 ? data : lies[i].entry == -2 ? table : table + 8 + lies[i].entry * ENTRY;
        memcpy(base + lies[i].at, &lies[i].value, (size_t)lies[i].width);
        uint64_t own = XXH3_64bits(data, 56);
        memcpy(data + 56, &own, sizeof own);
        seal_rank_file(data, &facts);
        case_write(path, data, (size_t)facts.bytes);
        assert_int_equal(rankfile_open(path, &shape, &facts, &file, &err), STATUS_CHECKPOINT);
        if (!strstr(err.text, lies[i].expected)) fail_msg("lie %zu: %s", i, err.text);
        free(data);
    }
}

/* Frames with right checksums that are not frames, or hold too much or too little. */
static void test_forged_frames(void **unused)
{
    (void)unused;
    char path[FS_PATH_MAX], content[600] = {0};
    uint8_t frame[700];
    struct rankfile_facts facts;
    struct error err;
    case_path(path, "r");
    for (int kind = 0; kind < 5; kind++) {
        uint8_t *data = make_rank_file(path, &facts, &err);
        uint8_t *entry = data + facts.bytes - TABLE_BYTES + 8;
        uint32_t stored;
        memcpy(&stored, entry + 20, sizeof stored);
        const char *expected = "the frame's content size differs from the table's";
        if (kind == 0) { /* not a zstd frame */
            memset(data + 64, 0, stored);
        } else if (kind == 1 || kind == 2) { /* another length */
            size_t n = ZSTD_compress(frame, sizeof frame, content, kind == 1 ? 399 : 500, 1);
            assert_true(n <= stored);
            memset(data + 64, 0, stored);
            memcpy(data + 64, frame, n);
        } else if (kind == 3) { /* blocks that are invalid */
            expected = "is damaged at offset 64: ";
            memset(data + 64 + 6, 0xff, stored - 6);
        } else { /* a flipped bit: refused, or a frame with other values */
            expected = "is damaged at offset 64: ";
            data[64 + stored - 1] ^= 0x55;
        }
        uint64_t checksum = XXH3_64bits(data + 64, stored);
        memcpy(entry + 32, &checksum, sizeof checksum);
        seal_rank_file(data, &facts);
        case_write(path, data, (size_t)facts.bytes);
        struct rankfile *file;
        float out[100];
        if (rankfile_open(path, &shape, &facts, &file, &err) != STATUS_OK) fail_msg("%s", err.text);
        enum status status = rankfile_range(file, 0, 0, 0, 100, out, &err);
        if (kind < 4 || status != STATUS_OK) {
            assert_int_equal(status, STATUS_CHECKPOINT);
            if (!strstr(err.text, expected)) fail_msg("frame %d: %s", kind, err.text);
            assert_int_equal(rankfile_verify(file, &err), STATUS_CHECKPOINT);
        }
        rankfile_close(file);
        free(data);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, case_setup, case_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_every_flipped_byte),
        TEST(test_shares_find_what_the_whole_finds),
        TEST(test_cut_zeroed_grown_missing),
        TEST(test_files_of_others),
        TEST(test_damage_is_found_while_loading),
        TEST(test_forged_manifests),
        TEST(test_forged_rank_files),
        TEST(test_forged_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
