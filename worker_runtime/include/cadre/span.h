// A pointer and a size: a view of contiguous elements that it does not own. The part of C++20's
// std::span that is needed here.
#ifndef CADRE_SPAN_H_
#define CADRE_SPAN_H_

#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

namespace cadre {

template <typename T>
class Span {
 public:
  using value_type = std::remove_cv_t<T>;

  constexpr Span() = default;
  constexpr Span(T* data, size_t size) : data_(data), size_(size) {}
  template <size_t N>
  constexpr Span(T (&array)[N]) : Span(array, N) {}  // NOLINT: implicit, as the two below
  // From a vector, a std::array, a string or another span.
  template <
      typename Container,
      typename = std::enable_if_t<
          std::is_convertible_v<
              std::remove_pointer_t<decltype(std::declval<Container&>().data())> (*)[], T (*)[]> &&
          std::is_convertible_v<decltype(std::declval<Container&>().size()), size_t>>>
  constexpr Span(Container&& container)  // NOLINT
      : Span(container.data(), container.size()) {}
  // For arguments only: the list lives until the call returns.
  template <typename U = T, typename = std::enable_if_t<std::is_const_v<U>>>
  constexpr Span(std::initializer_list<value_type> list)  // NOLINT
      : Span(list.begin(), list.size()) {}

  constexpr T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr T* begin() const { return data_; }
  constexpr T* end() const { return data_ + size_; }
  constexpr T& operator[](size_t i) const { return data_[i]; }
  constexpr T& front() const { return data_[0]; }
  constexpr T& back() const { return data_[size_ - 1]; }
  // The elements from `offset` on, at most `count`.
  constexpr Span subspan(size_t offset, size_t count = static_cast<size_t>(-1)) const {
    return Span(data_ + offset, count < size_ - offset ? count : size_ - offset);
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// A span of mutable elements, for a function template that takes a Span of any type.
template <typename Container>
auto MakeSpan(Container& container) {
  return Span<std::remove_pointer_t<decltype(container.data())>>(container);
}

}  // namespace cadre

#endif  // CADRE_SPAN_H_
