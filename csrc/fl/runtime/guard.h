// torch's view of the devices: current device, streams, events; pinned memory, default generators.
#pragma once

namespace lightning_mp::fl {

// Take the slot of PrivateUse1. Refused if another plugin has it.
void check_slot_is_free();
void register_guard();
void register_hooks();

}  // namespace lightning_mp::fl
