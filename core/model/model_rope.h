/* model_rope.h: the part of a config.json that is about RoPE, for model_config.c. */
#pragma once

#include "core/model/config_reader.h"

/* Which RoPE a family has in transformers. */
struct rope_facts {
    double theta; /* the default of rope_theta */
    bool partial; /* partial_rotary_factor has an effect */
    bool scaling; /* rope types other than "default" and LongRoPE exist */
    double local; /* layers with a window have a RoPE of their own: the default of rope_local_base_freq; 0: they have
                     not */
};

/* Reads desc->rope, desc->local_rope and desc->rotary_dim. head_dim and max_positions are known. */
void model_rope_read(struct config_reader *reader, const struct rope_facts *facts, struct model_desc *desc);
