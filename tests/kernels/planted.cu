/* SPDX-License-Identifier: Apache-2.0 */
/* planted.cu: kernels with the faults that check_kernels.py must find (its PLANTED and FAULTS), and one without. */

__global__ void good_kernel(uint4 *to, const uint4 *from)
{
    to[blockIdx.x * blockDim.x + threadIdx.x] = from[blockIdx.x * blockDim.x + threadIdx.x];
}

/* Loads and stores 4 bytes at a time. */
__global__ void narrow_kernel(unsigned *to, const unsigned *from)
{
    to[blockIdx.x * blockDim.x + threadIdx.x] = from[blockIdx.x * blockDim.x + threadIdx.x];
}

/* Loads 16 bytes, and stores them in four accesses. */
__global__ void half_kernel(unsigned *to, const uint4 *from)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 x = from[i];
    to[i] = x.x;
    to[i + 1024] = x.y;
    to[i + 2048] = x.z;
    to[i + 3072] = x.w;
}

/* Keeps 64 values that all depend on each other. */
static __device__ __forceinline__ void crowd(uint4 *to, const uint4 *from)
{
    uint4 x[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = from[blockDim.x * i + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint4 y = x[(i * 7 + 3) % 16];
        to[blockDim.x * (15 - i) + threadIdx.x] = make_uint4(x[i].x ^ y.w, x[i].y + y.z, x[i].z * y.y, x[i].w | y.x);
    }
}

__global__ void registers_kernel(uint4 *to, const uint4 *from)
{
    crowd(to, from);
}

__global__ void occupancy_kernel(uint4 *to, const uint4 *from)
{
    crowd(to, from);
}

/* An array that is indexed by a value lies on the stack. */
__global__ void spill_kernel(uint4 *to, const uint4 *from, int turns)
{
    uint4 x[16];
    for (int i = 0; i < 16; i++)
        x[i] = from[blockDim.x * i + threadIdx.x];
    for (int i = 0; i < turns; i++)
        x[x[i & 15].x & 15].y += x[(i * 5) & 15].z;
    for (int i = 0; i < 16; i++)
        to[blockDim.x * i + threadIdx.x] = x[i];
}
