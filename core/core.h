/* SPDX-License-Identifier: Apache-2.0 */
/* core.h: what files of every room use: errors, memory, logs, files, clocks, heartbeats, texts. */
#pragma once

#include "core/clock.h"
#include "core/edit_distance.h"
#include "core/env_switch.h"
#include "core/fsutil.h"
#include "core/hash_digits.h"
#include "core/heartbeat.h"
#include "core/io.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/memory.h"
#include "core/printable.h"
#include "core/round_up.h"
#include "core/size_text.h"
#include "core/status.h"
#include "core/string_list.h"
#include "core/thread.h"
