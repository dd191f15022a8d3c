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

// torch.Tensor and torch.nn.Parameter, and the table that tensors publish.
struct Torch {
    PyTypeObject *tensor, *parameter;
    const Exchange* exchange;

    Torch() {
        const nb::object torch = nb::module_::import_("torch"), type = torch.attr("Tensor");
        const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
        tensor = reinterpret_cast<PyTypeObject*>(type.ptr());  // lives as long as torch does
        parameter = reinterpret_cast<PyTypeObject*>(nb::object(torch.attr("nn").attr("Parameter")).ptr());
        exchange = capsule.is_none()
                       ? nullptr
                       : static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), Exchange::kName));
        if (!exchange || exchange->major != 1)
            throw std::runtime_error("this version of torch has no DLPack exchange table of version 1");
    }
};

const Torch& torch() {
    static const Torch found;
    return found;
}

// Whether Python answered True.
bool is_true(PyObject* answer) {
    if (!answer) throw nb::python_error();
    return nb::steal(answer).ptr() == Py_True;
}

}  // namespace

bool Tensor::read(PyObject* object) {
    object_ = object;
    if (!PyType_IsSubtype(Py_TYPE(object), torch().tensor)) return false;
    if (torch().exchange->read(object, &x_) == 0) {
        if (x_.data) x_.data = static_cast<char*>(x_.data) + x_.byte_offset;
        return true;
    }
    PyErr_Clear();
    x_ = {};
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

bool Tensor::requires_grad() const {
    static PyObject* const name = PyUnicode_InternFromString("requires_grad");
    return is_true(PyObject_GetAttr(object_, name));
}

bool Tensor::is_plain() const {
    static PyObject* const name = PyUnicode_InternFromString("is_neg");
    if (!x_.data || !on_cpu() || !is_float()) return false;
    if (Py_TYPE(object_) != torch().tensor && Py_TYPE(object_) != torch().parameter) return false;
    PyObject* self[] = {nullptr, object_};  // the place before it is one that Python may use
    return !is_true(PyObject_VectorcallMethod(name, self + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

bool Tensor::is_contiguous() const {
    int64_t expected = 1;
    for (int axis = x_.ndim - 1; axis >= 0; --axis) {
        if (x_.shape[axis] != 1 && x_.strides[axis] != expected) return false;
        expected *= x_.shape[axis];
    }
    return true;
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
