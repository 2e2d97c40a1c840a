// The passes that are still to run, each with its arguments.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.passes ["localize-shapes", "lower-to-tasks{serial=\22tp\22}"]
dist.passes ["localize-shapes", "lower-to-tasks{serial=\"tp\"}"]

// CHECK: dist.passes []
dist.passes []
