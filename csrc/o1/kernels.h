// Registration of the cast policies at the dispatcher's Autocast keys. No Python, no ATen.
#pragma once

#include <string>
#include <tuple>
#include <vector>

namespace lightning_mp::o1 {

// Device types are "cpu", "cuda" and "privateuse1"; policies "half", "fp32", "promote",
// "match_first", "banned", "banned_in_place" and "keep"; an operator is "namespace::name" with an
// overload name that may be empty. Anything else is an error.

// Who has the operator's Autocast slot: "ours", "taken", "free" or, without such an operator,
// "absent".
std::string slot(const std::string& op, const std::string& overload, const std::string& device);

// Puts a policy into a free slot, or into one of ours; returns "ours", "taken" or "absent".
std::string add(const std::string& op, const std::string& overload, const std::string& policy,
                const std::string& device);

// Empties our slots of a device type.
void remove(const std::string& device);

// Our slots, sorted: device type, operator, overload, policy.
std::vector<std::tuple<std::string, std::string, std::string, std::string>> table();

// Names the device type whose autocast dtype, while its autocast is off, says that O1 is on.
void use_carrier(const std::string& device, const std::string& carrier);

// The torch that this library was compiled against.
std::string torch_version();

}  // namespace lightning_mp::o1
