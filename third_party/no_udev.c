/* hwloc's archive asks libudev for the vendor and model of disks, and Debian has no static libudev.
 * A udev_new() that fails is a case hwloc handles: it reads /run/udev itself. The other functions
 * are then never called. */

#include <stddef.h>

void* udev_new(void) { return NULL; }
void* udev_unref(void* udev) {
  (void)udev;
  return NULL;
}
void* udev_device_new_from_subsystem_sysname(void* udev, const char* subsystem, const char* name) {
  (void)udev;
  (void)subsystem;
  (void)name;
  return NULL;
}
const char* udev_device_get_property_value(void* device, const char* key) {
  (void)device;
  (void)key;
  return NULL;
}
void* udev_device_unref(void* device) {
  (void)device;
  return NULL;
}
