// The operator example::Gate, y = x where |x| is at least `threshold` and 0 elsewhere, as a library for ONNX Runtime:
//   g++ -std=c++17 -O2 -shared -fPIC gate.cc -I $ORT/include -o libgate.so
//   gauntlet run model.onnx --data samples.npz --set 'operator_libraries=[libgate.so]'
#define ORT_API_MANUAL_INIT
#include <onnxruntime_lite_custom_op.h>

#include <cmath>
#include <memory>

struct Gate {
  Gate(const OrtApi* api, const OrtKernelInfo* info) {
    Ort::ThrowOnError(api->KernelInfoGetAttribute_float(info, "threshold", &threshold));
  }

  void Compute(const Ort::Custom::Tensor<float>& x, Ort::Custom::Tensor<float>& y) {
    float* result = y.Allocate(x.Shape());
    for (int64_t i = 0; i < x.NumberOfElement(); ++i)
      result[i] = std::fabs(x.Data()[i]) >= threshold ? x.Data()[i] : 0.0f;
  }

  float threshold = 0.0f;
};

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  Ort::Global<void>::api_ = base->GetApi(ORT_API_VERSION);
  static const std::unique_ptr<Ort::Custom::OrtLiteCustomOp> gate(
      Ort::Custom::CreateLiteCustomOp<Gate>("Gate", "CPUExecutionProvider"));
  static const Ort::CustomOpDomain domain = [] {
    Ort::CustomOpDomain made("example");
    made.Add(gate.get());
    return made;
  }();
  Ort::UnownedSessionOptions(options).Add(domain);
  return nullptr;
}
