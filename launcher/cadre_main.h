// The cadre command: finds the subcommand, parses its arguments and runs it.
#ifndef CADRE_LAUNCHER_CADRE_MAIN_H_
#define CADRE_LAUNCHER_CADRE_MAIN_H_

namespace cadre::launcher {

// Call it as main() does, before any thread is started.
int CadreMain(int argc, char** argv);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_CADRE_MAIN_H_
