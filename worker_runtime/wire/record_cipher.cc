#include "worker_runtime/wire/record_cipher.h"

#include <openssl/evp.h>

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/keyed_digest.h"

namespace cadre::wire {
namespace {

constexpr size_t kNumberBytes = 12;  // AES-GCM's nonce

// With right arguments only memory can be missing.
void Check(int done) { CADRE_CHECK(done == 1, "AES-256-GCM", " by OpenSSL failed"); }

const unsigned char* BytesOf(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

RecordCipher::RecordCipher(std::string key, Use use)
    : key_(std::move(key)), use_(use), context_(EVP_CIPHER_CTX_new()) {
  Check(context_ != nullptr);
}

RecordCipher::~RecordCipher() { EVP_CIPHER_CTX_free(context_); }

void RecordCipher::Begin(absl::string_view head) {
  const bool has_new_key = count_ % kRecordsPerKey == 0;
  if (has_new_key && count_ > 0) key_ = DeriveKey(key_, "", "cadre record key after this");
  unsigned char number[kNumberBytes] = {};
  memcpy(number, &count_, sizeof(count_));
  Check(EVP_CipherInit_ex(context_, count_ == 0 ? EVP_aes_256_gcm() : nullptr, nullptr,
                          has_new_key ? BytesOf(key_) : nullptr, number,
                          use_ == Use::kSeal ? 1 : 0));
  ++count_;
  int bytes = 0;
  if (head.empty()) return;
  Check(EVP_CipherUpdate(context_, nullptr, &bytes, BytesOf(head), static_cast<int>(head.size())));
}

void RecordCipher::Update(void* to, const void* from, size_t bytes) {
  int moved = 0;
  Check(EVP_CipherUpdate(context_, static_cast<unsigned char*>(to), &moved,
                         static_cast<const unsigned char*>(from), static_cast<int>(bytes)));
}

void RecordCipher::MakeTag(void* tag) {
  int bytes = 0;
  Check(EVP_CipherFinal_ex(context_, nullptr, &bytes));
  Check(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, kRecordTagBytes, tag));
}

bool RecordCipher::HasTag(const void* tag) {
  int bytes = 0;
  Check(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_SET_TAG, kRecordTagBytes,
                            const_cast<void*>(tag)));
  return EVP_CipherFinal_ex(context_, nullptr, &bytes) == 1;
}

}  // namespace cadre::wire
