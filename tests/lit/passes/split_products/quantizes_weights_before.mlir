// Of products that read what is gathered, weights are quantized before the loop, wherever that was.
// RUN: stagec-opt %s -p 'split-products{pieces=2}' | filecheck %s

dist.mesh <tp = 2>
stg.dim "S" = "64"
stg.program "M" (%x : !stg.tensor<[S/tp, D], mxfp8>) {
  %w = stg.weight "w" : !stg.tensor<[D, F/tp], mxfp8>
  %u = stg.weight "u" : !stg.tensor<[D, F/tp], bf16>
  // CHECK:      %[[SMALL:.*]] = stg.quantize %u
  // CHECK:      stg.repeat "tp.piece"
  %g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], mxfp8> -> !stg.tensor<[S, D], mxfp8>
  // CHECK:      stg.contract %{{.*}}, %w over [D]
  %y = stg.contract %g, %w over [D] : (!stg.tensor<[S, D], mxfp8>, !stg.tensor<[D, F/tp], mxfp8>) -> !stg.tensor<[S, F/tp], mxfp8>
  %q = stg.quantize %u : (!stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[D, F/tp], mxfp8>
  // CHECK-NEXT: stg.contract %{{.*}}, %[[SMALL]] over [D]
  %z = stg.contract %g, %q over [D] : (!stg.tensor<[S, D], mxfp8>, !stg.tensor<[D, F/tp], mxfp8>) -> !stg.tensor<[S, F/tp], mxfp8>
  "test.op"(%y, %z) : (!stg.tensor<[S, F/tp], mxfp8>, !stg.tensor<[S, F/tp], mxfp8>) -> ()
  stg.output
}
