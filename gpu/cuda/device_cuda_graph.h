/* device_cuda_graph.h: capturing and launching graphs on a CUDA device; the design is in device_cuda_graph.c. */
#pragma once

#include "gpu/cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The backend's entries: see device.h. */
bool cuda_is_capturing(const struct device *device);
enum status cuda_graph_begin(struct stream *const *streams, int count, struct graph **graph, struct error *err);
enum status cuda_graph_end(struct graph *graph, struct error *err);
void cuda_graph_launch(struct graph *graph);
void cuda_graph_free(struct graph *graph);

/* The number of the capture that is in progress, counted from 1; 0: there is none. */
uint64_t cuda_capture_number(const struct cuda_device *cuda);

#ifdef __cplusplus
}
#endif
