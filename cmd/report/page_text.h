/* page_text.h: the files page.html, page.css and page.js, which the assembler puts into the program. */
#pragma once

#include <stddef.h>

enum page_file { PAGE_HTML, PAGE_CSS, PAGE_JS };

/* The text of a file and its bytes; no NUL follows. */
const char *page_text(enum page_file file, size_t *bytes);
