// The steps of a norm make what the norm made: a weight that is wider is cast, and nothing that needs no cast.
// RUN: stagec-opt %s -p decompose-statistics | filecheck %s

%x, %w = "test.op"() : () -> (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[D/tp], fp32>)
// CHECK:      %[[W:[^ ]*]] = stg.cast %w {{.*}} -> !stg.tensor<[D/tp], bf16>
// CHECK-NEXT: %[[Y:[^ ]*]] = stg.mul {{.*}}, %[[W]] {{.*}} -> !stg.tensor<[B, D/tp], bf16>
// CHECK-NEXT: %[[Z:[^ ]*]] = stg.cast %[[Y]]
%y, %r = stg.rms_norm %x weight %w over [D]
  : (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[D/tp], fp32>) -> (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[B], fp32>)
%z = stg.cast %y : (!stg.tensor<[B, D/tp], bf16>) -> !stg.tensor<[B, D/tp], fp32>
// CHECK-NOT:  stg.cast
%a, %b = stg.rms_norm %z over [D] : (!stg.tensor<[B, D/tp], fp32>) -> (!stg.tensor<[B, D/tp], fp32>, !stg.tensor<[B], fp32>)
