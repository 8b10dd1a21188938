/* gpu_ceilings.h: how fast the GPU multiplies, attends and copies now, for `ztrain doctor`. */
#pragma once

/* Opens the first GPU, measures large products, an attention and copies, and prints a line for each; or prints why it
 * could not. */
void ceilings_report(void);
