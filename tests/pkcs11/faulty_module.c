// A PKCS#11 module in front of another one, with faults that the file NAME.fault beside it asks for. The other module is
// NAME.under. Logins are counted in NAME.logins, a byte each.
//
//   (empty or absent)  none
//   generation N       after a change of N every call fails until the module is initialized again: a daemon that restarted
//   absent             no slot has a token
//   clock LABEL        the token with this label has a clock that is not of the standard's form
//   arguments          the module cannot be initialized without parameters of its own

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long ulong_t;
enum { OK = 0, GENERAL_ERROR = 5, ARGUMENTS_BAD = 7, CLOCK_ON_TOKEN = 0x40 };
// CK_FUNCTION_LIST of PKCS#11 2.40, and the places of the functions that fail.
enum { INITIALIZE = 0, FUNCTION_LIST = 3, SLOT_LIST = 4, SLOT_INFO = 5, TOKEN_INFO = 6, OPEN_SESSION = 12, SESSION_INFO = 15,
       LOGIN = 18, ATTRIBUTES = 24, FIND_INIT = 26, SIGN_INIT = 42, SIGN = 43, FUNCTIONS = 68 };
typedef struct { unsigned char version[2]; void *functions[FUNCTIONS]; } function_list;
typedef struct { char label[32], manufacturer[32], model[16], serial[16]; ulong_t flags, counts[10]; unsigned char versions[4]; char clock[16]; } token_info;

static function_list *under, faulty;
static char fault_at_start[64];

static const char *beside(const char *suffix) {
  static _Thread_local char path[4096];
  Dl_info own;
  dladdr((void *)beside, &own);
  snprintf(path, sizeof path, "%s.%s", own.dli_fname, suffix);
  return path;
}

static const char *fault(void) {
  static _Thread_local char text[64];
  memset(text, 0, sizeof text);
  FILE *file = fopen(beside("fault"), "r");
  if (file) {
    if (!fgets(text, sizeof text, file)) text[0] = 0;
    fclose(file);
  }
  text[strcspn(text, "\n")] = 0;
  return text;
}

static int is_gone(void) {
  const char *now = fault();
  int is_daemon = !strncmp(now, "generation", 10) || !strncmp(fault_at_start, "generation", 10);
  return is_daemon && strcmp(now, fault_at_start) != 0;
}

static ulong_t initialize(void *arguments) {
  if (!strcmp(fault(), "arguments")) return ARGUMENTS_BAD;
  strcpy(fault_at_start, fault());
  return ((ulong_t(*)(void *))under->functions[INITIALIZE])(arguments);
}

static ulong_t slot_list(unsigned char present, ulong_t *slots, ulong_t *count) {
  if (is_gone()) return GENERAL_ERROR;
  if (!strcmp(fault(), "absent")) { *count = 0; return OK; }
  return ((ulong_t(*)(unsigned char, ulong_t *, ulong_t *))under->functions[SLOT_LIST])(present, slots, count);
}

static ulong_t info(ulong_t slot, token_info *info) {
  if (is_gone()) return GENERAL_ERROR;
  ulong_t result = ((ulong_t(*)(ulong_t, token_info *))under->functions[TOKEN_INFO])(slot, info);
  const char *now = fault();
  if (result == OK && !strncmp(now, "clock ", 6) && !strncmp(info->label, now + 6, strlen(now + 6))) {
    info->flags |= CLOCK_ON_TOKEN;
    memset(info->clock, ' ', sizeof info->clock);
  }
  return result;
}

static ulong_t login(ulong_t session, ulong_t user, char *pin, ulong_t length) {
  if (is_gone()) return GENERAL_ERROR;
  FILE *file = fopen(beside("logins"), "a");
  if (file) { fputc('0' + (int)user, file); fclose(file); }
  return ((ulong_t(*)(ulong_t, ulong_t, char *, ulong_t))under->functions[LOGIN])(session, user, pin, length);
}

// The others have five machine words of arguments at most.
typedef ulong_t (*any)(ulong_t, ulong_t, ulong_t, ulong_t, ulong_t);
#define FAILING(name, place) \
  static ulong_t name(ulong_t a, ulong_t b, ulong_t c, ulong_t d, ulong_t e) { \
    return is_gone() ? GENERAL_ERROR : ((any)under->functions[place])(a, b, c, d, e); \
  }
FAILING(slot_info, SLOT_INFO)
FAILING(open_session, OPEN_SESSION)
FAILING(session_info, SESSION_INFO)
FAILING(attributes, ATTRIBUTES)
FAILING(find_init, FIND_INIT)
FAILING(sign_init, SIGN_INIT)
FAILING(sign, SIGN)

ulong_t C_GetFunctionList(function_list **list) {
  void *library = dlopen(beside("under"), RTLD_NOW | RTLD_LOCAL);
  ulong_t (*of_under)(function_list **) = library ? (ulong_t(*)(function_list **))dlsym(library, "C_GetFunctionList") : 0;
  if (!of_under || of_under(&under) != OK) return GENERAL_ERROR;
  faulty = *under;
  faulty.functions[INITIALIZE] = (void *)initialize;
  faulty.functions[FUNCTION_LIST] = (void *)C_GetFunctionList;
  faulty.functions[SLOT_LIST] = (void *)slot_list;
  faulty.functions[SLOT_INFO] = (void *)slot_info;
  faulty.functions[TOKEN_INFO] = (void *)info;
  faulty.functions[OPEN_SESSION] = (void *)open_session;
  faulty.functions[SESSION_INFO] = (void *)session_info;
  faulty.functions[LOGIN] = (void *)login;
  faulty.functions[ATTRIBUTES] = (void *)attributes;
  faulty.functions[FIND_INIT] = (void *)find_init;
  faulty.functions[SIGN_INIT] = (void *)sign_init;
  faulty.functions[SIGN] = (void *)sign;
  *list = &faulty;
  return OK;
}
