#include "launcher/cadre_main.h"

int main(int argc, char** argv) { return cadre::launcher::CadreMain(argc, argv); }
