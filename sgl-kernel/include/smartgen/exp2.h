// Coefficients of 2^f on [0, 1): degree 5, relative error 8.3e-8, constant term exactly 1.
//
// The constant term matters: a running maximum that did not change rescales by 2^0, and if that were not
// exactly 1 the log-sum-exp would drift with every block (5e-5 over a few thousand keys) and results would
// depend on how the queries were grouped.
#pragma once

namespace smartgen {
namespace {

constexpr float kExp2[6] = {1.0f, 0.69315131181f, 0.24016445010f, 0.05579991332f, 0.00901703002f, 0.00186713022f};

}  // namespace
}  // namespace smartgen
