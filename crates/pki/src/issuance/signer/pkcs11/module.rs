//! The library of a token: loaded once in a process, and initialized again after its token or its daemon went away.
//!
//! Finalizing a library ends the sessions and logins of all its keys. So each use of a session holds a [`Lease`], and a
//! session belongs to one initialization: a later one may give its handle to another key.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLockReadGuard};
use std::time::{Duration, Instant};

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use portcullis_system::sync::lock;

use super::error::{TokenError, one_line};

/// How long an initialization waits for the signatures of other keys: a call that does not return must not stop them all.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(2);
const QUIESCE_POLL: Duration = Duration::from_millis(5);
/// How long the keys of a module are spared another initialization after several in a row that did not help.
const FUTILE_BACKOFF: Duration = Duration::from_secs(5);

#[expect(
    clippy::disallowed_types,
    reason = "not in the request path: signatures run beside each other, an initialization alone"
)]
type Initializations = std::sync::RwLock<Initialization>;

/// A loaded library.
pub(super) struct TokenModule {
    /// The path in the URI.
    path: PathBuf,
    library: Pkcs11,
    current: Initializations,
    /// When initializing the library again did not help.
    futile: Mutex<Option<Instant>>,
    /// Held for a login, so that one of several keys of a token logs in.
    pub(super) logins: Mutex<()>,
}

struct Initialization {
    generation: u64,
    /// Why the library is not initialized.
    failure: Option<TokenError>,
}

/// The use of a library, which is not finalized meanwhile.
pub(super) struct Lease<'a> {
    pub(super) module: &'a TokenModule,
    current: RwLockReadGuard<'a, Initialization>,
}

impl Lease<'_> {
    pub(super) fn library(&self) -> &Pkcs11 {
        &self.module.library
    }

    /// Sessions of another generation are closed already.
    pub(super) fn generation(&self) -> u64 {
        self.current.generation
    }
}

/// The loaded modules, by the files that they are: a process may load and initialize each only once (PKCS#11 §5.4).
static MODULES: Mutex<Vec<(PathBuf, Arc<TokenModule>)>> = Mutex::new(Vec::new());

impl TokenModule {
    /// Loads and initializes a library, once.
    pub(super) fn load(path: &Path) -> Result<Arc<Self>, TokenError> {
        // Two paths of one library are one library.
        let file = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut modules = lock(&MODULES);
        if let Some((_, module)) = modules.iter().find(|(known, _)| *known == file) {
            return Ok(Arc::clone(module));
        }
        let library = Pkcs11::new(path).map_err(|error| {
            TokenError::refused(format!("module {}: {}", path.display(), one_line(&error)))
        })?;
        let first = Initialization { generation: 0, failure: initialize(&library, path).err() };
        let module = Arc::new(Self {
            path: path.to_owned(),
            library,
            current: Initializations::new(first),
            futile: Mutex::default(),
            logins: Mutex::default(),
        });
        modules.push((file, Arc::clone(&module)));
        Ok(module)
    }

    /// The library, if it is initialized.
    pub(super) fn lease(&self) -> Result<Lease<'_>, TokenError> {
        let lease = self.any_lease();
        match &lease.current.failure {
            None => Ok(lease),
            Some(failure) => Err(failure.clone()),
        }
    }

    /// The library, to end the use of a session.
    pub(super) fn any_lease(&self) -> Lease<'_> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Lease { module: self, current }
    }

    /// The generation of the initialization in force.
    pub(super) fn generation(&self) -> u64 {
        self.any_lease().generation()
    }

    /// Finalizes and initializes the library, unless that happened since `generation`. Returns whether another attempt
    /// makes sense.
    // threat: token-of-others
    pub(super) fn initialize_again(&self, generation: u64) -> bool {
        if lock(&self.futile).is_some_and(|since| since.elapsed() < FUTILE_BACKOFF) {
            return self.generation() != generation;
        }
        let began = Instant::now();
        let mut current = loop {
            // Not `write`: readers would queue behind it.
            match self.current.try_write() {
                Ok(current) => break current,
                Err(std::sync::TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(std::sync::TryLockError::WouldBlock) if began.elapsed() >= QUIESCE_TIMEOUT => {
                    return false;
                }
                Err(std::sync::TryLockError::WouldBlock) => std::thread::sleep(QUIESCE_POLL),
            }
        };
        if current.generation == generation {
            current.generation += 1;
            // Without its daemon a library may fail to finalize, and be initialized all the same.
            self.library.clone().finalize().ok();
            current.failure = initialize(&self.library, &self.path).err();
        }
        true
    }

    /// Records whether initializing the library again has helped.
    pub(super) fn note(&self, has_helped: bool) {
        *lock(&self.futile) = if has_helped { None } else { Some(Instant::now()) };
    }
}

fn initialize(library: &Pkcs11, path: &Path) -> Result<(), TokenError> {
    let module = path.display();
    match library.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
        Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(()),
        // NSS: lib/softoken/pkcs11.c, nsc_CommonInitialize
        Err(error @ Error::Pkcs11(RvError::ArgumentsBad, _)) => Err(TokenError::refused(format!(
            "module {module}: {}: it needs parameters of its own, as NSS' libsoftokn3.so does: name p11-kit-proxy.so as \
             the module-path, and give p11-kit this module with its parameters in x-init-reserved",
            one_line(&error)
        ))),
        Err(error) => Err(TokenError::of(&format!("module {module}"), &error)),
    }
}
