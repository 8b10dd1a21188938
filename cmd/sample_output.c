#include "cmd/sample_output.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum status flush(struct error *err)
{
    if (!fflush(stdout) && !ferror(stdout))
        return STATUS_OK;
    return error_set(err, STATUS_USAGE, "cannot write to standard output: %s", strerror(errno));
}

/* Control characters of one byte, and those of C1, which are two bytes: 0xc2 and 0x80 … 0x9f. */
static void print_for_terminal(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned char byte = bytes[i];
        const bool c1 = byte == 0xc2 && i + 1 < count && bytes[i + 1] < 0xa0;
        if (c1)
            printf("\\x%02x", bytes[++i]);
        else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f)
            printf("\\x%02x", byte);
        else
            putchar(byte);
    }
}

/* Prints output->text, and empties it. */
static enum status print_text(struct sample_output *output, struct error *err)
{
    struct text *text = &output->text;
    if (text->count && isatty(STDOUT_FILENO))
        print_for_terminal((const unsigned char *)text->bytes, text->count);
    else if (text->count)
        fwrite(text->bytes, 1, text->count, stdout);
    text->count = 0;
    return flush(err);
}

enum status sample_output_token(struct sample_output *output, int64_t token, bool ends, struct error *err)
{
    if (!output->tokenizer) {
        printf("%s%lld", output->count++ ? "," : "", (long long)token);
        return flush(err);
    }
    output->count++;
    if (!ends)
        text_stream_push(&output->stream, output->tokenizer, (int32_t)token, true, &output->text);
    return print_text(output, err);
}

enum status sample_output_end(struct sample_output *output, struct error *err)
{
    if (output->tokenizer)
        text_stream_end(&output->stream, &output->text);
    text_add(&output->text, "\n", 1);
    return print_text(output, err);
}

void sample_output_release(struct sample_output *output)
{
    text_release(&output->text);
}
