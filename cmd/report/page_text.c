/* page_text.c: .incbin takes the files as they are, relative to the source tree's root, where make runs. The Makefile
 * names them as what this file depends on. */
#include "cmd/report/page_text.h"

/* clang-format off */
#define EMBED(name, path)                                                           \
    __asm__(".pushsection .rodata\n"                                                \
            ".globl ztrain_page_" name "\n.globl ztrain_page_" name "_end\n"        \
            ".hidden ztrain_page_" name "\n.hidden ztrain_page_" name "_end\n"      \
            "ztrain_page_" name ":\n.incbin \"" path "\"\nztrain_page_" name "_end:\n" \
            ".popsection\n")
/* clang-format on */

EMBED("html", "cmd/report/page.html");
EMBED("css", "cmd/report/page.css");
EMBED("js", "cmd/report/page.js");

extern const char ztrain_page_html[], ztrain_page_html_end[];
extern const char ztrain_page_css[], ztrain_page_css_end[];
extern const char ztrain_page_js[], ztrain_page_js_end[];

const char *page_text(enum page_file file, size_t *bytes)
{
    const char *const begins[] = {ztrain_page_html, ztrain_page_css, ztrain_page_js};
    const char *const ends[] = {ztrain_page_html_end, ztrain_page_css_end, ztrain_page_js_end};
    *bytes = (size_t)(ends[file] - begins[file]);
    return begins[file];
}
