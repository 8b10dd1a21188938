/* SPDX-License-Identifier: Apache-2.0 */
/* version.h: which ztrain this is. */
#pragma once

#define ZTRAIN_VERSION "0.3.0"
