/* version.h: which ztrain this is. */
#ifndef ZTRAIN_CORE_VERSION_H
#define ZTRAIN_CORE_VERSION_H

#define ZTRAIN_VERSION "0.2.0"

#endif
