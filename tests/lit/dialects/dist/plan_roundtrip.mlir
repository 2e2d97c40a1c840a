// What a plan says, and where in its text.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.plan "fsdp" batch "B" trains {microbatch = 4 : i64, zero = {level = 3 : i64, axes = ["dp"]}} at {zero = "m.stg:9:3-9:16"}
dist.plan "fsdp" batch "B" trains {microbatch = 4 : i64, zero = {level = 3 : i64, axes = ["dp"]}} at {zero = "m.stg:9:3-9:16"}

// CHECK: dist.plan "" batch "tokens" {} at {}
dist.plan "" batch "tokens" {} at {}

// CHECK: dist.plan "serving" batch "B" new "S" {} at {}
dist.plan "serving" batch "B" new "S" {} at {}
