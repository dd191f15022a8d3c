// PyTorch's tensors as arguments of the extension. Their memory, sizes and strides are read through the table of functions
// that DLPack lets a framework publish, so that nothing links to PyTorch, and in about 50 ns; in Python the attributes of a
// tensor take several times as long, which tiny calls feel.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "problem.h"

namespace limelight {

// A tensor, or None. It points into the Python object, and is good for as long as that lives.
class Tensor {
public:
    // Reads a tensor; false where the object is none, or is one without memory of its own.
    bool read(PyObject* object);

    bool given() const { return object_ != nullptr; }
    bool is_read() const { return x_.shape != nullptr; }
    char* data() const { return static_cast<char*>(x_.data); }  // null for None and for tensors without values
    int axes() const { return x_.ndim; }
    int64_t size(int axis) const { return x_.shape[axis]; }
    int64_t stride(int axis) const { return x_.strides[axis]; }
    int64_t width() const { return x_.shape[x_.ndim - 1]; }  // of the last axis
    int64_t elements() const;
    int64_t bytes() const { return elements() * x_.dtype.bits / 8; }
    Type type() const;      // i8 for all types of one byte
    bool is_float() const;  // of a type that attention computes with
    bool on_cpu() const { return x_.device.device_type == nanobind::device::cpu::value; }
    bool requires_grad() const;

    // An ordinary tensor of floats in the CPU's memory: no subclass but Parameter, and no negation that is still to be done.
    // False for an object that could not be read.
    bool is_plain() const;

    bool has_contiguous_rows() const { return x_.strides[x_.ndim - 1] == 1; }
    bool is_contiguous() const;
    Rows rows() const;  // of (batch, head, row, width); all null for None
    Grid grid() const;  // of (batch, head, query, key), already expanded; all null for None

private:
    nanobind::dlpack::dltensor x_ = {};
    PyObject* object_ = nullptr;

    void check_axes(int count) const;
};

// An argument that may be anything: where it is no tensor that can be read, it is not plain.
class Candidate : public Tensor {};

}  // namespace limelight

namespace nanobind::detail {

template <>
struct type_caster<limelight::Tensor> {
    NB_TYPE_CASTER(limelight::Tensor, const_name("torch.Tensor"))

    bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
        value = {};  // a list has one caster for all of its elements
        return source.is_none() || value.read(source.ptr());
    }
};

template <>
struct type_caster<limelight::Candidate> {
    NB_TYPE_CASTER(limelight::Candidate, const_name("torch.Tensor | None"))

    bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
        value = {};
        if (!source.is_none()) value.read(source.ptr());
        return true;
    }
};

}  // namespace nanobind::detail
