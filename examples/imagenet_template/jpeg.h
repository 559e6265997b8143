// JPEG pictures, by libjpeg-turbo. Pure but for the files; thread safe.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_JPEG_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_JPEG_H_

#include <string>

#include "cadre/result.h"
#include "cadre/status.h"
#include "picture.h"

namespace cadre::imagenet {

// Of any kind that ImageNet has: in color, in grey, or for print (CMYK). NOT_FOUND;
// INVALID_ARGUMENT names the file and what is wrong; UNIMPLEMENTED: this program was built without
// libjpeg-turbo.
Result<Picture> ReadJpeg(const std::string& path);

// `quality` of 1 to 100.
Status WriteJpeg(const Picture& picture, const std::string& path, int quality);

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_JPEG_H_
