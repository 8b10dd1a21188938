/* nvme_folder.h: the folder in which a group of tests keeps offloaded state, for cmocka's group fixtures. */
#pragma once

#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/ztrain-nvme-XXXXXX";

static inline int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

/* Fails if a rank has left anything. */
static inline int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}
