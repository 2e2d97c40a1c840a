// Other sizes are compiled from the text: IR is of one plan.
// RUN: not stagec explain %s flops --sweep tp=1,2 2>&1 | filecheck %s
// RUN: not stagec explain %s --solve "memory.peak < 80GiB" --for tp 2>&1 | filecheck %s --check-prefix=SOLVE

// CHECK: error[E0711]: `--sweep` tries other sizes of a model, and `{{.*}}` is IR, of one plan
// CHECK: help: name the model, and the plan: `--plan`
// SOLVE: error[E0711]: `--solve` tries other sizes of a model, and `{{.*}}` is IR, of one plan
dist.passes []
