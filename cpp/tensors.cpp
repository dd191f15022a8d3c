#include "tensors.h"

#include <stdexcept>

namespace nb = nanobind;

namespace limelight {

namespace {

// DLPack's DLPackExchangeAPI, version 1; functions that are not used here have no type.
struct Exchange {
    uint32_t major, minor;
    void *previous, *allocate, *to_managed, *from_managed;
    int (*read)(void* object, nb::dlpack::dltensor* out);  // 0, or -1 with a Python exception

    static constexpr const char* kName = "dlpack_exchange_api";
};

// torch.Tensor, and the table that it publishes.
struct Torch {
    PyTypeObject* tensor;
    const Exchange* exchange;

    Torch() {
        const nb::object type = nb::module_::import_("torch").attr("Tensor");
        const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
        tensor = reinterpret_cast<PyTypeObject*>(type.ptr());  // lives as long as torch does
        exchange = capsule.is_none()
                       ? nullptr
                       : static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), Exchange::kName));
        if (!exchange || exchange->major != 1)
            throw std::runtime_error("this version of torch has no DLPack exchange table of version 1");
    }
};

}  // namespace

bool Tensor::read(PyObject* object) {
    static const Torch torch;
    if (!PyType_IsSubtype(Py_TYPE(object), torch.tensor)) return false;
    if (torch.exchange->read(object, &x_) == 0) {
        if (x_.data) x_.data = static_cast<char*>(x_.data) + x_.byte_offset;
        return true;
    }
    PyErr_Clear();
    return false;
}

int64_t Tensor::elements() const {
    int64_t count = 1;
    for (int axis = 0; axis < x_.ndim; ++axis) count *= x_.shape[axis];
    return count;
}

Type Tensor::type() const {
    const auto code = nb::dlpack::dtype_code(x_.dtype.code);
    const int bits = x_.dtype.bits;
    if (bits == 8) return Type::i8;
    if (code == nb::dlpack::dtype_code::Bfloat) return Type::bf16;
    if (code == nb::dlpack::dtype_code::Float) return bits == 16 ? Type::f16 : bits == 32 ? Type::f32 : Type::f64;
    throw std::invalid_argument("the kernels do not know the type of a tensor");
}

bool Tensor::is_float() const {
    const auto code = nb::dlpack::dtype_code(x_.dtype.code);
    const int bits = x_.dtype.bits;
    return code == nb::dlpack::dtype_code::Bfloat || (code == nb::dlpack::dtype_code::Float && bits >= 16);
}

void Tensor::check_axes(int count) const {
    if (x_.ndim != count) throw std::invalid_argument("a tensor has the wrong number of axes");
}

Rows Tensor::rows() const {
    if (!given()) return {};
    check_axes(4);
    if (size(3) > 1 && !has_contiguous_rows()) throw std::invalid_argument("the rows of a tensor are not contiguous");
    return {data(), type(), stride(0), stride(1), stride(2)};
}

Grid Tensor::grid() const {
    if (!given()) return {};
    check_axes(4);
    return {data(), type(), stride(0), stride(1), stride(2), stride(3)};
}

}  // namespace limelight
