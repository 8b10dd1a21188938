#include "gpu/cpu/device_cpu_state.h"

#include <stdarg.h>
#include <stdio.h>

void device_cpu_fail(struct device_cpu *cpu, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&cpu->error_mutex);
    if (cpu->error.code == STATUS_OK)
        error_set(&cpu->error, STATUS_DEVICE, "%s", text);
    pthread_mutex_unlock(&cpu->error_mutex);
}
