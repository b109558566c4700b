// SPDX-License-Identifier: Apache-2.0
// Array types shared by the bindings. Records cross as rows of bytes: DLPack has no structured types.
#ifndef REINET_BINDINGS_HPP
#define REINET_BINDINGS_HPP

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

#include "core/flow_stats.h"
#include "core/state.hpp"

namespace reinet {

template <class T>
using Vector = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using Matrix = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

template <class T>
std::span<T> span_of(const Vector<T>& values) {
  return {values.data(), values.shape(0)};
}

// Copies, because the rows of a caller's array need not be aligned.
template <class Record, class Byte>
Record record_at(const Matrix<Byte>& rows, std::size_t i) {
  Record record;
  std::memcpy(&record, rows.data() + i * sizeof(Record), sizeof(Record));
  return record;
}

template <class Record>
void put_record(const Matrix<std::uint8_t>& rows, std::size_t i, const Record& record) {
  std::memcpy(rows.data() + i * sizeof(Record), &record, sizeof(Record));
}

inline void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

template <class Record, class Byte>
void require_rows_of(const Matrix<Byte>& rows) {
  require(rows.shape(1) == sizeof(Record), "rows of bytes do not have the record's size");
}

inline NormaliserTable table_from(const Matrix<const double>& rows) {
  require(rows.shape(0) == kInputs && rows.shape(1) == 4, "a normaliser table has the shape (4, 4)");
  NormaliserTable table;
  static_assert(sizeof(table) == kInputs * 4 * sizeof(double));
  std::memcpy(table.data(), rows.data(), sizeof(table));
  return table;
}

inline void table_to(const NormaliserTable& table, const Matrix<double>& rows) {
  require(rows.shape(0) == kInputs && rows.shape(1) == 4, "a normaliser table has the shape (4, 4)");
  std::memcpy(rows.data(), table.data(), sizeof(table));
}

}  // namespace reinet

#endif
