// The cadre command: finds the subcommand, reads its arguments, runs it.
#ifndef CADRE_LAUNCHER_CADRE_MAIN_H_
#define CADRE_LAUNCHER_CADRE_MAIN_H_

namespace cadre::launcher {

// As main(), before any thread.
int CadreMain(int argc, char** argv);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_CADRE_MAIN_H_
