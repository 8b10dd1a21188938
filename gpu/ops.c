/* ops.c: the functions of ops.h that are not ops: each calls the device's backend. */
#include "gpu/ops.h"

#include "gpu/device_backend.h"

enum status ops_prepare(struct device *device, const struct linear_products *products, struct error *err)
{
    const struct device_backend *backend = device_backend_of(device);
    return backend->prepare ? backend->prepare(device, products, err) : STATUS_OK;
}

size_t ops_workspace_bytes(struct device *device, const struct op_limits *limits)
{
    return device_backend_of(device)->workspace_bytes(device, limits);
}

void ops_describe(struct device *device, char *text, size_t size)
{
    const struct device_backend *backend = device_backend_of(device);
    if (size)
        *text = 0;
    if (backend->describe)
        backend->describe(device, text, size);
}
