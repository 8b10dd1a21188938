/* SPDX-License-Identifier: Apache-2.0 */
/* test_autotune_cache.c: the cache returns the stored configs, the first writer wins, and damage to the file does no
 * harm; a candidate that was on trial when its process ended is known to the next process, and no other. */
#include "gpu/autotune_cache.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ztrain-autotune-cache-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    return setenv("ZTRAIN_GEMM_CACHE", folder, 1);
}

static int remove_folder(void **state)
{
    char command[256];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static struct autotune_key key_of(int64_t m)
{
    return (struct autotune_key){.op = AUTOTUNE_GEMM, .fields = {m, 1024, 768, 768, 768, m, 0, 1}};
}

static struct autotune_config config_of(uint64_t n)
{
    return (struct autotune_config){{n, ~n, 0, UINT64_MAX, n << 32, 5, 6, 7}, (int64_t)(n % AUTOTUNE_FUSIONS), 12.5};
}

static struct autotune_cache *open_cache(const char *gpu)
{
    struct autotune_cache *cache = autotune_cache_open(gpu, 130100, false);
    assert_non_null(cache);
    autotune_cache_lock(cache);
    return cache;
}

static void close_cache(struct autotune_cache *cache)
{
    autotune_cache_unlock(cache);
    autotune_cache_close(cache);
}

static void put(struct autotune_cache *cache, int64_t m, uint64_t number)
{
    const struct autotune_key key = key_of(m);
    const struct autotune_config config = config_of(number);
    autotune_cache_put(cache, &key, &config);
}

/* The number of the config (config_of()) that the cache has; 0: none. */
static uint64_t get(struct autotune_cache *cache, int64_t m)
{
    const struct autotune_key key = key_of(m);
    struct autotune_config found;
    if (!autotune_cache_find(cache, &key, &found)) return 0;
    const struct autotune_config whole = config_of(found.kernel[0]);
    assert_memory_equal(&found, &whole, sizeof whole);
    return found.kernel[0];
}

static void choices_are_found_again(void **state)
{
    (void)state;
    struct autotune_cache *cache = open_cache("NVIDIA Test 1");
    assert_int_equal(get(cache, 1), 0);
    for (int m = 1; m <= 200; m++) put(cache, m, (uint64_t)m);
    put(cache, 7, 7000); /* replaced */
    close_cache(cache);
    cache = open_cache("NVIDIA Test 1");
    for (int m = 1; m <= 200; m++) assert_int_equal(get(cache, m), m == 7 ? 7000 : m);
    assert_int_equal(get(cache, 201), 0);
    close_cache(cache);
    cache = open_cache("NVIDIA Test 2"); /* another GPU, another file */
    assert_int_equal(get(cache, 1), 0);
    close_cache(cache);
}

/* While one process measures, another waits, and then finds the choices of the first. */
static void the_first_writer_wins(void **state)
{
    (void)state;
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct autotune_cache *cache = autotune_cache_open("NVIDIA Shared", 130100, false);
        autotune_cache_lock(cache);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        usleep(100000);
        put(cache, 1, 11);
        autotune_cache_unlock(cache);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    struct autotune_cache *cache = open_cache("NVIDIA Shared");
    assert_int_equal(get(cache, 1), 11);
    close_cache(cache);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(ready[0]);
    close(ready[1]);
}

/* A copy of the file with one byte changed at `at`, or cut there. */
static void damage(const char *path, const char *bytes, size_t size, size_t at, bool cut)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fwrite(bytes, 1, at, file);
    if (!cut) {
        fputc(bytes[at] ^ 1, file);
        fwrite(bytes + at + 1, 1, size - at - 1, file);
    }
    fclose(file);
}

static void damage_is_never_believed(void **state)
{
    (void)state;
    static char bytes[4096];
    struct autotune_cache *cache = open_cache("NVIDIA Damaged");
    put(cache, 1, 101);
    put(cache, 2, 102);
    char path[512];
    snprintf(path, sizeof path, "%s", autotune_cache_path(cache));
    close_cache(cache);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_true(size > 300 && size < sizeof bytes);
    for (int cut = 0; cut < 2; cut++) {
        for (size_t at = 0; at < size; at += 3) {
            damage(path, bytes, size, at, cut);
            cache = open_cache("NVIDIA Damaged");
            uint64_t one = get(cache, 1), two = get(cache, 2);
            assert_true(one == 0 || one == 101);
            assert_true(two == 0 || two == 102);
            if (at < size - 1) assert_true(one == 0 || two == 0); /* at least one line is lost */
            close_cache(cache);
        }
    }
    damage(path, bytes, size, 0, true); /* an empty file is written anew */
    cache = open_cache("NVIDIA Damaged");
    put(cache, 3, 103);
    close_cache(cache);
    cache = open_cache("NVIDIA Damaged");
    assert_int_equal(get(cache, 3), 103);
    close_cache(cache);
}

static void long_and_binary_lines_are_skipped(void **state)
{
    (void)state;
    struct autotune_cache *cache = open_cache("NVIDIA Long");
    put(cache, 1, 1);
    char path[512];
    snprintf(path, sizeof path, "%s", autotune_cache_path(cache));
    close_cache(cache);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    for (int i = 0; i < 5000; i++) fputc("1 \0z"[i % 4], file);
    fclose(file);
    cache = open_cache("NVIDIA Long");
    assert_int_equal(get(cache, 1), 1);
    close_cache(cache);
}

static struct autotune_key attention_key_of(int64_t n)
{
    struct autotune_key key = {.op = AUTOTUNE_ATTENTION, .fields = {n}};
    key.fields[AUTOTUNE_KEY_FIELDS - 1] = -n;
    return key;
}

static void choices_of_attention_are_found_again(void **state)
{
    (void)state;
    const struct autotune_config config = {.kernel = {4, 33, 7, UINT64_MAX}, .microseconds = 2.5};
    const struct autotune_key key = attention_key_of(3), other = attention_key_of(4);
    struct autotune_config found;
    struct autotune_cache *cache = open_cache("NVIDIA Attention");
    put(cache, 3, 1);
    autotune_cache_put(cache, &key, &config);
    close_cache(cache);
    cache = open_cache("NVIDIA Attention");
    assert_int_equal(get(cache, 3), 1);
    assert_true(autotune_cache_find(cache, &key, &found));
    assert_memory_equal(&found, &config, sizeof found);
    assert_false(autotune_cache_find(cache, &other, &found));
    autotune_cache_discard(cache, AUTOTUNE_ATTENTION);
    autotune_cache_put(cache, &other, &config);
    assert_true(autotune_cache_find(cache, &other, &found));
    close_cache(cache);
    cache = open_cache("NVIDIA Attention");
    assert_true(autotune_cache_find(cache, &key, &found));
    assert_false(autotune_cache_find(cache, &other, &found));
    close_cache(cache);
}

/* A GPU that is throttled while it is measured for one of the two keeps what it has chosen for the other. */
static void products_and_attention_are_kept_apart(void **state)
{
    (void)state;
    const struct autotune_config config = {.kernel = {1, 0, 0, 5}}, other = {.kernel = {2, 0, 0, 6}};
    const struct autotune_key key = attention_key_of(8);
    struct autotune_config found;
    struct autotune_cache *cache = open_cache("NVIDIA Warm");
    put(cache, 1, 1);
    autotune_cache_discard(cache, AUTOTUNE_GEMM);
    autotune_cache_put(cache, &key, &config);
    close_cache(cache);
    cache = open_cache("NVIDIA Warm");
    assert_int_equal(get(cache, 1), 0);
    assert_true(autotune_cache_find(cache, &key, &found));
    put(cache, 1, 1);
    put(cache, 2, 2);
    autotune_cache_put(cache, &key, &other);
    autotune_cache_put(cache, &key, &other); /* twice: the file's config is still the one before */
    autotune_cache_discard(cache, AUTOTUNE_ATTENTION);
    close_cache(cache);
    cache = open_cache("NVIDIA Warm");
    assert_int_equal(get(cache, 1), 1);
    assert_int_equal(get(cache, 2), 2);
    assert_true(autotune_cache_find(cache, &key, &found));
    assert_memory_equal(&found, &config, sizeof found);
    close_cache(cache);
}

/* Two versions of cuDNN, in two environments with one home, keep their choices next to each other. */
static void a_choice_is_of_one_version_of_cudnn(void **state)
{
    (void)state;
    const int of_cudnn = 20; /* the last field of a product's key */
    struct autotune_key key = key_of(5), other = key_of(5);
    struct autotune_config config = {.fusion = 1}, otherwise = {.fusion = 2}, found;
    key.fields[of_cudnn] = 91900;
    other.fields[of_cudnn] = 92600;
    struct autotune_cache *cache = open_cache("NVIDIA Versions");
    autotune_cache_put(cache, &key, &config);
    autotune_cache_put(cache, &other, &otherwise);
    close_cache(cache);
    cache = open_cache("NVIDIA Versions");
    assert_true(autotune_cache_find(cache, &key, &found));
    assert_int_equal(found.fusion, 1);
    assert_true(autotune_cache_find(cache, &other, &found));
    assert_int_equal(found.fusion, 2);
    close_cache(cache);
}

/* Files of earlier versions had other lines: they are replaced, not read. */
static void an_older_file_is_measured_again(void **state)
{
    (void)state;
    static char bytes[4096];
    struct autotune_cache *cache = open_cache("NVIDIA Older");
    put(cache, 1, 1);
    char path[512];
    snprintf(path, sizeof path, "%s", autotune_cache_path(cache));
    close_cache(cache);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes - 1, file);
    char *version = strstr(bytes, "ztrain gemm cache 6\n");
    assert_ptr_equal(version, bytes);
    bytes[strlen("ztrain gemm cache ")] = '5';
    rewind(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
    cache = open_cache("NVIDIA Older");
    assert_int_equal(get(cache, 1), 0);
    put(cache, 2, 2);
    close_cache(cache);
    cache = open_cache("NVIDIA Older");
    assert_int_equal(get(cache, 1), 0);
    assert_int_equal(get(cache, 2), 2);
    close_cache(cache);
}

static void a_folder_that_cannot_be_written_is_survived(void **state)
{
    (void)state;
    char blocked[256];
    snprintf(blocked, sizeof blocked, "%s/file", folder);
    int fd = open(blocked, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    setenv("ZTRAIN_GEMM_CACHE", blocked, 1);
    struct autotune_cache *cache = open_cache("NVIDIA Blocked");
    put(cache, 1, 1);
    assert_int_equal(get(cache, 1), 1);
    close_cache(cache);
    setenv("ZTRAIN_GEMM_CACHE", folder, 1);
}

static void the_environment_says_where(void **state)
{
    (void)state;
    setenv("ZTRAIN_GEMM_CACHE", "", 1);
    assert_null(autotune_cache_open("NVIDIA H200", 130100, false)); /* the cache is switched off */
    autotune_cache_lock(NULL);
    put(NULL, 1, 1);
    assert_int_equal(get(NULL, 1), 0);
    autotune_cache_unlock(NULL);
    autotune_cache_close(NULL);
    unsetenv("ZTRAIN_GEMM_CACHE");
    setenv("XDG_CACHE_HOME", folder, 1);
    struct autotune_cache *cache = autotune_cache_open("NVIDIA H200", 130100, false);
    assert_non_null(strstr(autotune_cache_path(cache), "/ztrain/gemm-NVIDIA-H200-130100.txt"));
    autotune_cache_lock(cache); /* creates the folder */
    put(cache, 1, 1);
    autotune_cache_unlock(cache);
    assert_int_equal(access(autotune_cache_path(cache), R_OK), 0);
    autotune_cache_close(cache);
    setenv("XDG_CACHE_HOME", "", 1);
    setenv("HOME", "/nowhere", 1);
    cache = autotune_cache_open("NVIDIA H200", 130100, false);
    assert_string_equal(autotune_cache_path(cache), "/nowhere/.cache/ztrain/gemm-NVIDIA-H200-130100.txt");
    autotune_cache_close(cache);
    setenv("ZTRAIN_GEMM_CACHE", folder, 1);
}

/* Nothing is measured for them: the file does not count, but a kernel that has faulted does. */
static void choices_apart_are_those_of_the_run(void **state)
{
    (void)state;
    struct autotune_cache *file = open_cache("NVIDIA Apart");
    put(file, 1, 1);
    close_cache(file);
    struct autotune_cache *apart = autotune_cache_open("NVIDIA Apart", 130100, true);
    autotune_cache_lock(apart);
    assert_int_equal(get(apart, 1), 0);
    put(apart, 1, 21);
    const struct autotune_key key = key_of(2);
    const struct autotune_config config = config_of(22);
    autotune_cache_note(apart, &key, &config, "the matrix product m 2 n 1024 k 768");
    close_cache(apart); /* as a process that ends: its note stays */
    file = open_cache("NVIDIA Apart");
    assert_int_equal(get(file, 1), 1);
    assert_true(autotune_cache_is_faulty(file, &key, &config));
    close_cache(file);

    setenv("ZTRAIN_GEMM_CACHE", "", 1); /* without a folder too */
    apart = autotune_cache_open("NVIDIA Apart", 130100, true);
    autotune_cache_lock(apart);
    autotune_cache_note(apart, &key, &config, "the matrix product m 2 n 1024 k 768");
    autotune_cache_note_done(apart);
    put(apart, 3, 23);
    char *text = autotune_cache_export(apart);
    close_cache(apart);
    apart = autotune_cache_open("NVIDIA Apart", 130100, true);
    autotune_cache_import(apart, text, false);
    assert_int_equal(get(apart, 3), 23);
    autotune_cache_close(apart);
    free(text);
    setenv("ZTRAIN_GEMM_CACHE", folder, 1);
}

/* As if the file had been written `seconds` from now. */
static void date_file(const struct autotune_cache *cache, int seconds)
{
    const struct timespec at = {.tv_sec = time(NULL) + seconds}, times[2] = {at, at};
    assert_int_equal(utimensat(AT_FDCWD, autotune_cache_path(cache), times, 0), 0);
}

static void choices_are_measured_again(void **state)
{
    (void)state;
    struct autotune_cache *cache = open_cache("NVIDIA Again");
    put(cache, 1, 1);
    put(cache, 2, 2);
    close_cache(cache);
    cache = autotune_cache_open("NVIDIA Again", 130100, false);
    autotune_cache_tune_again(cache);
    date_file(cache, -1000);
    autotune_cache_lock(cache);
    assert_int_equal(get(cache, 1), 0);
    put(cache, 1, 11);
    assert_int_equal(get(cache, 1), 11);
    autotune_cache_unlock(cache);
    date_file(cache, 1000); /* another rank has measured meanwhile */
    autotune_cache_lock(cache);
    assert_int_equal(get(cache, 1), 11);
    assert_int_equal(get(cache, 2), 2); /* of another product: still in the file */
    put(cache, 1, 12);
    autotune_cache_discard(cache, AUTOTUNE_GEMM);
    close_cache(cache);
    cache = open_cache("NVIDIA Again");
    assert_int_equal(get(cache, 1), 11);
    close_cache(cache);
}

/* What one machine has used goes to another, where it counts more than the file and is not written into it. */
static void choices_go_from_rank_to_rank(void **state)
{
    (void)state;
    struct autotune_cache *first = open_cache("Sender"), *foreign = open_cache("Another"), *second;
    assert_null(autotune_cache_export(NULL));
    put(first, 1, 11);
    put(first, 2, 12);
    close_cache(first);
    first = open_cache("Sender");
    assert_int_equal(get(first, 2), 12); /* 1 is in the file, but this run has no such product */
    char *text = autotune_cache_export(first);
    assert_non_null(text);
    autotune_cache_import(foreign, text, true);
    assert_int_equal(get(foreign, 2), 0);
    assert_false(autotune_cache_follows(foreign)); /* the text is of another GPU */
    close_cache(foreign);
    put(first, 1, 21);
    put(first, 2, 22);
    close_cache(first);
    second = open_cache("Sender");
    autotune_cache_import(second, text, false);
    assert_false(autotune_cache_follows(second));
    autotune_cache_import(second, text, true);
    assert_true(autotune_cache_follows(second));
    assert_int_equal(get(second, 1), 21);
    assert_int_equal(get(second, 2), 12);
    close_cache(second);
    second = open_cache("Sender");
    assert_int_equal(get(second, 2), 22);
    for (size_t cut = 0; cut < strlen(text); cut++) { /* damaged on its way */
        char *damaged = strdup(text);
        damaged[cut] ^= 1;
        autotune_cache_import(second, damaged, true);
        damaged[cut] = '\0';
        autotune_cache_import(second, damaged, true);
        free(damaged);
    }
    assert_int_equal(get(second, 2), 22);
    close_cache(second);
    free(text);
}

/* ---- candidates on trial ------------------------------------------------- */

static const struct autotune_config good = {.kernel = {1, 2}}, bad = {.kernel = {3, 4}};
static const char words[] = "the matrix product m 96 n 40 k 64";

static void file_of(const struct autotune_cache *cache, const char *suffix, char path[512])
{
    snprintf(path, 512, "%s%s", autotune_cache_path(cache), suffix);
}

static void what_was_on_trial_is_faulty(void **state)
{
    (void)state;
    char running[512], faulty[512], text[128];
    const struct autotune_key key = key_of(96);
    struct autotune_cache *cache = open_cache("NVIDIA Trial");
    file_of(cache, ".trial", running);
    file_of(cache, ".faulty", faulty);
    assert_false(autotune_cache_is_faulty(cache, &key, &bad));
    autotune_cache_note(cache, &key, &good, words);
    autotune_cache_note_done(cache);
    assert_int_not_equal(access(running, F_OK), 0);
    autotune_cache_note(cache, &key, &bad, words);
    autotune_cache_close(cache); /* as the process's end does */
    assert_int_equal(access(running, F_OK), 0);
    for (int i = 0; i < 2; i++) {
        cache = open_cache("NVIDIA Trial");
        assert_int_not_equal(access(running, F_OK), 0);
        assert_true(autotune_cache_is_faulty(cache, &key, &bad));
        assert_false(autotune_cache_is_faulty(cache, &key, &good));
        const struct autotune_key other = key_of(97);
        assert_false(autotune_cache_is_faulty(cache, &other, &bad));
        close_cache(cache);
    }
    FILE *file = fopen(faulty, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text + 16, " m 96 n 40 k 64\n");
}

/* The number among the proposals, which files of earlier builds have, does not tell candidates apart. */
static void a_place_among_proposals_does_not_count(void **state)
{
    (void)state;
    const struct autotune_key key = attention_key_of(1);
    const struct autotune_config before = {.kernel = {4, 33, 7, 99}}, same = {.kernel = {4, 0, 7, 99}},
                                 other = {.kernel = {4, 33, 7, 98}};
    struct autotune_cache *cache = open_cache("NVIDIA Place");
    autotune_cache_note(cache, &key, &before, "attention forward");
    autotune_cache_close(cache);
    cache = open_cache("NVIDIA Place");
    assert_true(autotune_cache_is_faulty(cache, &key, &same));
    assert_false(autotune_cache_is_faulty(cache, &key, &other));
    close_cache(cache);
}

static void damaged_notes_do_no_harm(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "\n", "0123456789abcdef m 1 n", "nonsense m 1 n 2 k 3\n"};
    char running[512], faulty[512];
    const struct autotune_key key = key_of(1);
    struct autotune_cache *cache = open_cache("NVIDIA Notes");
    file_of(cache, ".trial", running);
    file_of(cache, ".faulty", faulty);
    close_cache(cache);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        FILE *file = fopen(running, "w");
        assert_non_null(file);
        assert_true(fputs(texts[i], file) >= 0);
        assert_int_equal(fclose(file), 0);
        close_cache(open_cache("NVIDIA Notes"));
        assert_int_not_equal(access(faulty, F_OK), 0);
        assert_int_not_equal(access(running, F_OK), 0);
    }
    autotune_cache_note(NULL, &key, &good, words);
    autotune_cache_note_done(NULL);
    assert_false(autotune_cache_is_faulty(NULL, &key, &good));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_found_again),
        cmocka_unit_test(the_first_writer_wins),
        cmocka_unit_test(damage_is_never_believed),
        cmocka_unit_test(long_and_binary_lines_are_skipped),
        cmocka_unit_test(choices_of_attention_are_found_again),
        cmocka_unit_test(products_and_attention_are_kept_apart),
        cmocka_unit_test(a_choice_is_of_one_version_of_cudnn),
        cmocka_unit_test(an_older_file_is_measured_again),
        cmocka_unit_test(a_folder_that_cannot_be_written_is_survived),
        cmocka_unit_test(the_environment_says_where),
        cmocka_unit_test(choices_apart_are_those_of_the_run),
        cmocka_unit_test(choices_are_measured_again),
        cmocka_unit_test(choices_go_from_rank_to_rank),
        cmocka_unit_test(what_was_on_trial_is_faulty),
        cmocka_unit_test(a_place_among_proposals_does_not_count),
        cmocka_unit_test(damaged_notes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
