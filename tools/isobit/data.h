// SPDX-License-Identifier: Apache-2.0
// Data that the verbs read, and what they write.
#ifndef ISOBIT_TOOLS_DATA_H_
#define ISOBIT_TOOLS_DATA_H_

#include "isobit/files.h"
#include "isobit/sequences.h"

#endif  // ISOBIT_TOOLS_DATA_H_
