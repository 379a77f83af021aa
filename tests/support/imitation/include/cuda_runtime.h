// In place of the whole runtime's header, which nccl.h includes for its types.
#pragma once
#include <driver_types.h>
