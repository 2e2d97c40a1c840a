// The pools that a model is spread over, in the order of the pipeline: their ranks along it, and the repeats that they run.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.towers ["vision" 1 ["LV", "LA"], "text" 4 ["L"]]
dist.towers ["vision" 1 ["LV", "LA"], "text" 4 ["L"]]
