/* SPDX-License-Identifier: Apache-2.0 */
#include "core/printable.h"

#include "core/memory.h"

#include <utf8proc.h>

/* The number of bytes of the printable character at the beginning of `text`; 0: there is none. */
static size_t printable_length(const char *text)
{
    utf8proc_int32_t point;
    const utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &point);
    const bool control = point < 0x20 || (point >= 0x7f && point < 0xa0);
    return length < 1 || control ? 0 : (size_t)length;
}

static bool is_printable(const char *text)
{
    for (const char *c = text; *c;) {
        size_t length = printable_length(c);
        if (!length) return false;
        c += length;
    }
    return true;
}

const char *printable(const char *text, char *buffer, size_t size)
{
    static const char cut[] = "...";
    ASSERT(size >= 8);
    if (is_printable(text)) return text;
    size_t used = 0, cut_at = 0; /* cut_at: the dots still fit after this many bytes */
    for (const char *c = text; *c;) {
        size_t length = printable_length(c), shown = length ? length : 4;
        if (used + sizeof cut <= size) cut_at = used;
        if (used + shown + 1 > size) {
            memcpy(buffer + cut_at, cut, sizeof cut);
            return buffer;
        }
        if (length)
            memcpy(buffer + used, c, length);
        else
            snprintf(buffer + used, size - used, "\\x%02x", (unsigned char)*c);
        used += shown;
        c += length ? length : 1;
    }
    buffer[used] = 0;
    return buffer;
}

char *shell_word(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+=:@%,";
    char *word;
    FILE *out = memory_stream(&word, NULL);
    const bool quotes = !*text || text[strspn(text, plain)], escapes = !is_printable(text);
    fputs(escapes ? "$'" : quotes ? "'" : "", out);
    for (; *text; text++)
        if (escapes && (*text == '\'' || *text == '\\'))
            fprintf(out, "\\%c", *text);
        else if (escapes && ((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f))
            fprintf(out, "\\%03o", (unsigned char)*text);
        else
            fputs(*text == '\'' ? "'\\''" : (const char[]){*text, '\0'}, out);
    fputs(quotes ? "'" : "", out);
    fclose(out);
    return word;
}

void printable_put(FILE *out, const char *text, size_t bytes)
{
    for (size_t i = 0, n; i < bytes; i += n) {
        const size_t length = printable_length(text + i);
        n = length ? length : 1;
        if (length || text[i] == '\n' || text[i] == '\t')
            fwrite(text + i, 1, n, out);
        else
            fprintf(out, "\\x%02x", (unsigned char)text[i]);
    }
}

void wrapped_put(FILE *out, int width, const char *begin, const char *text, size_t size)
{
    const int indent = (int)strlen(begin);
    int column = fprintf(out, "%s", begin);
    for (const char *word = text, *end = text + size; word < end;) {
        int length = (int)strcspn(word, " ");
        if (word + length > end) length = (int)(end - word);
        if (column > indent && column + 1 + length > width) column = fprintf(out, "\n%*s", indent, "") - 1;
        column += column > indent ? fprintf(out, " %.*s", length, word) : fprintf(out, "%.*s", length, word);
        word += length + (word[length] == ' ');
    }
    fputc('\n', out);
}
