/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as messages of another node's agent, in pieces: they change only that node's entries, or are refused with
 * words. With a greeting in front in every other case, so that more than the greeting is reached. */
#include "comm/control/agent_messages.h"

#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORLD = 4 };
static const struct rank_place places[WORLD] = {{.node = 0, .local_rank = 0, .host = "a"},
                                                {.node = 1, .local_rank = 0, .host = "b"},
                                                {.node = 0, .local_rank = 1, .host = "a"},
                                                {.node = 1, .local_rank = 1, .host = "b"}};

/* The memory of node 0, as if nothing had ever been said. */
static struct control *fresh_control(void)
{
    static struct control *control;
    if (!control) {
        const struct control_shape shape = {.world = WORLD, .local_world = 2, .num_nodes = 2, .places = places};
        struct error err;
        int fd;
        ASSERT(control_create(&shape, &fd, &err) == STATUS_OK);
        ASSERT(control_attach(fd, 0, WORLD, "a", 5, &control, &err) == STATUS_OK);
    }
    struct control_block *block = control->block;
    atomic_store(&block->failed, 0);
    for (int r = 0; r < WORLD; r++) {
        struct control_rank *entry = &block->ranks[r];
        struct control_rank empty = {.node = entry->node, .local_rank = entry->local_rank};
        strcpy(empty.host, places[r].host);
        *entry = empty;
    }
    return control;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct control *control = fresh_control();
    struct control_block *block = control->block;
    const struct control_rank before[2] = {block->ranks[0], block->ranks[2]};
    struct agent_inbox inbox;
    struct error err = {.code = STATUS_OK};
    if (size < 2) return 0;
    size_t piece = data[0] ? data[0] : 1;
    bool greet = data[1] & 1;
    agent_inbox_init(&inbox, control, 1);
    if (greet) {
        const struct agent_header header = {AGENT_HELLO, 1, AGENT_VERSION, sizeof(struct agent_hello)};
        const struct agent_hello hello = {WORLD, 2, 2};
        ASSERT(agent_inbox_feed(&inbox, &header, sizeof header, &err) == STATUS_OK);
        ASSERT(agent_inbox_feed(&inbox, &hello, sizeof hello, &err) == STATUS_OK);
    }
    enum status status = STATUS_OK;
    for (size_t at = 2; at < size && status == STATUS_OK; at += piece)
        status = agent_inbox_feed(&inbox, data + at, size - at < piece ? size - at : piece, &err);
    ASSERT(status == STATUS_OK || (status == STATUS_PEER && err.text[0]));
    ASSERT(memcmp(&before[0], &block->ranks[0], sizeof before[0]) == 0);
    ASSERT(memcmp(&before[1], &block->ranks[2], sizeof before[1]) == 0);
    for (int r = 0; r < WORLD; r++)
        ASSERT(block->ranks[r].state <= RANK_DEAD && !strcmp(block->ranks[r].host, places[r].host));
    if (control_status(control, &err) != STATUS_OK) ASSERT(err.code >= 1 && err.code <= 255);
    agent_inbox_release(&inbox);
    return 0;
}
