/* SPDX-License-Identifier: Apache-2.0 */
/* model_quantization.c: quantization_config of a config.json: how the folder's matrices are stored. */
#include "core/model/config_reader.h"
#include "core/quantization/quantized.h"

static void read_bitsandbytes(struct config_reader *members, struct quantization_settings *settings)
{
    const char *type = reader_string(members, "bnb_4bit_quant_type", "fp4");
    if (!reader_bool(members, "load_in_4bit", false))
        reader_fail(members, STATUS_USAGE, "bitsandbytes in 8 bits is not read; hint: 4 bits are (load_in_4bit)");
    else if (strcmp(type, "nf4") != 0)
        reader_fail(members, STATUS_USAGE, "bnb_4bit_quant_type '%.60s' is not read; hint: nf4 is", type);
    settings->method = QUANTIZATION_NF4;
    settings->double_quant = reader_bool(members, "bnb_4bit_use_double_quant", false);
}

static void read_fp8(struct config_reader *members, struct quantization_settings *settings)
{
    const json_t *size = reader_get(members, "weight_block_size");
    char shown[64];
    if (strcmp(reader_string(members, "fmt", "e4m3"), "e4m3") != 0)
        reader_fail(members, STATUS_USAGE, "fmt '%.60s' is not read; hint: e4m3 is", reader_string(members, "fmt", ""));
    else if (!reader_value_is(size, "[128, 128]"))
        reader_fail(members, STATUS_USAGE, "weight_block_size %s is not read; hint: [128, 128] is",
                    size ? reader_show(size, shown) : "null");
    settings->method = QUANTIZATION_FP8;
}

static void read_skipped(struct config_reader *members, const char *key, struct quantization_settings *settings)
{
    const json_t *list = reader_get(members, key);
    settings->has_skip = json_is_array(list);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name)
            reader_fail(members, STATUS_DATA, "%s%s is a list of names", members->scope, key);
        else
            string_list_add(&settings->skip, name);
    }
}

void model_quantization_read(struct config_reader *reader, struct model_desc *desc)
{
    const json_t *object = reader_get(reader, "quantization_config");
    struct quantization_settings *settings = &desc->quantization;
    struct asked_keys asked = {.count = 0};
    settings->compute_dtype = DTYPE_COUNT;
    if (object && !json_is_object(object)) reader_fail(reader, STATUS_DATA, "quantization_config must be an object");
    if (!object || reader->status != STATUS_OK) return;
    struct config_reader members = {object,         &asked,      reader->spec,  reader->where, "quantization_config.",
                                    reader->family, reader->err, reader->status};
    const char *method = reader_string(&members, "quant_method", "");
    const bool bitsandbytes = strcmp(method, "bitsandbytes") == 0;
    if (bitsandbytes)
        read_bitsandbytes(&members, settings);
    else if (strcmp(method, "fp8") == 0)
        read_fp8(&members, settings);
    else if (strcmp(method, "mxfp4") == 0)
        settings->method = QUANTIZATION_MXFP4;
    else
        reader_fail(&members, STATUS_USAGE,
                    "quantization_config: quant_method '%.60s' is not read; hint: bitsandbytes (nf4), fp8 and mxfp4 "
                    "are, or use the model's unquantized weights",
                    method);
    settings->decoded = settings->method == QUANTIZATION_MXFP4 && desc->family == FAMILY_GPT_OSS;
    read_skipped(&members, bitsandbytes ? "llm_int8_skip_modules" : "modules_to_not_convert", settings);
    reader->status = members.status;
}
