// JPEG pictures, by libjpeg-turbo. Pure except for the files; thread safe.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_JPEG_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_JPEG_H_

#include <string>

#include "cadre/result.h"
#include "cadre/status.h"
#include "picture.h"

namespace cadre::imagenet {

// Reads every kind that ImageNet has: color, grey, or print (CMYK). Fails with NOT_FOUND; with
// INVALID_ARGUMENT, which names the file and what is wrong; or with UNIMPLEMENTED if this program
// was built without libjpeg-turbo.
Result<Picture> ReadJpeg(const std::string& path);

// `quality` is 1 to 100.
Status WriteJpeg(const Picture& picture, const std::string& path, int quality);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_JPEG_H_
