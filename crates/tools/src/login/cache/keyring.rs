//! The system's keyring as a store: the Secret Service of freedesktop.org over the D-Bus session bus, as gnome-keyring
//! and `KWallet` have it. (`KeePassXC` shows a prompt for each item that is written, which a command without a user refuses.)
//!
//! Each document is an item with the attributes `application` and `key`, in the default collection. A locked keyring is
//! unlocked only if the command may ask the user. Every call ends by a deadline, and no error has a part of an item.
// threat: stolen-login-cache
// Secret Service API Draft 0.2, https://specifications.freedesktop.org/secret-service-spec/

mod bus;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use portcullis_openid::error::shortened;
use secrecy::zeroize::Zeroizing;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use zbus::zvariant::{DynamicType, OwnedObjectPath, OwnedValue, Type, Value};
use zbus::{Connection, Proxy};

use super::store::SecretDocument;
use bus::BusAddresses;

/// Whether this build has a keyring.
pub(super) const IS_BUILT: bool = true;

const DESTINATION: &str = "org.freedesktop.secrets";
const SERVICE_PATH: &str = "/org/freedesktop/secrets";
const SERVICE: &str = "org.freedesktop.Secret.Service";
const COLLECTION: &str = "org.freedesktop.Secret.Collection";
const ITEM: &str = "org.freedesktop.Secret.Item";
const PROMPT: &str = "org.freedesktop.Secret.Prompt";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// In place of an object that does not exist: no collection, or no prompt that is needed.
const NO_OBJECT: &str = "/";

/// The attribute that all items have, and its value.
const APPLICATION: (&str, &str) = ("application", "portcullis");
/// The attribute with the name of the entry.
const KEY: &str = "key";

/// How long the service may take to answer a call; the bus may have to start it first.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the user may take to unlock the keyring.
const PROMPT_TIMEOUT: Duration = Duration::from_mins(2);

/// Why the keyring cannot be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::login) enum KeyringError {
    #[error(
        "the keyring: there is no D-Bus session bus: {0}\n  fix: run the command in a session of the desktop, or use \
         --credential-store=file"
    )]
    NoBus(String),
    #[error(
        "the keyring: the D-Bus session bus belongs to another user\n  fix: correct DBUS_SESSION_BUS_ADDRESS, or use \
         --credential-store=file"
    )]
    ForeignBus,
    #[error(
        "the keyring: the owner of the D-Bus session bus could not be found out: {0}\n  fix: use --credential-store=file"
    )]
    UnknownOwner(String),
    #[error(
        "the keyring: no service on the D-Bus session bus provides {DESTINATION}\n  fix: install and start gnome-keyring \
         or KWallet, or use --credential-store=file"
    )]
    NoService,
    #[error(
        "the keyring has no default collection\n  fix: create one, for example with `seahorse`, or use \
         --credential-store=file"
    )]
    NoCollection,
    #[error(
        "the keyring is locked, and this command must not ask to unlock it: standard input is not a terminal, or the \
         client does not allow it\n  fix: unlock the keyring, or run `portcullis login`, then repeat the command"
    )]
    Locked,
    #[error("the keyring stays locked: the prompt to unlock it was dismissed")]
    Dismissed,
    #[error("the keyring: the prompt was not answered within {0:?}")]
    PromptTimeout(Duration),
    #[error(
        "the keyring: {call} had no answer within {limit:?}\n  fix: restart the keyring service, or use --credential-store=file"
    )]
    Timeout { call: &'static str, limit: Duration },
    #[error("the keyring: {call}: there is no such object")]
    NoObject { call: &'static str },
    #[error("the keyring: {call}: {problem}")]
    Call { call: &'static str, problem: String },
}

impl KeyringError {
    /// Whether the flags are at fault.
    #[expect(clippy::unused_self, reason = "builds without a keyring have the same function")]
    pub(super) fn is_usage(&self) -> bool {
        false
    }

    /// Whether there is no keyring that could have entries.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::NoBus(_) | Self::NoService)
    }

    #[cfg(test)]
    pub(super) fn of_test() -> Self {
        Self::Dismissed
    }
}

/// The keyring of the user's session. The clones share a connection, which the first call makes.
#[derive(Debug, Clone)]
pub(super) struct Keyring {
    addresses: BusAddresses,
    /// Whether the service may ask the user to unlock a collection.
    may_prompt: bool,
    service: Arc<OnceCell<SecretService>>,
}

impl Keyring {
    pub(super) fn open(may_prompt: bool) -> Result<Self, KeyringError> {
        BusAddresses::of_session().map(|addresses| Self::at(addresses, may_prompt))
    }

    fn at(addresses: BusAddresses, may_prompt: bool) -> Self {
        Self { addresses, may_prompt, service: Arc::default() }
    }

    async fn service(&self) -> Result<&SecretService, KeyringError> {
        self.service.get_or_try_init(|| SecretService::connect(&self.addresses, self.may_prompt)).await
    }

    pub(super) async fn read(&self, name: &str) -> Result<Option<SecretDocument>, KeyringError> {
        let service = self.service().await?;
        let items = service.items_of(name).await?;
        let Some(item) = items.first() else {
            // Otherwise a login would follow that cannot be kept.
            service.collection().await?;
            return Ok(None);
        };
        present(service.secret(item).await)
    }

    pub(super) async fn write(&self, name: &str, content: &[u8]) -> Result<(), KeyringError> {
        let service = self.service().await?;
        let earlier = service.items_of(name).await?;
        let written = service.create(name, content).await?;
        // Replacing is within a collection; the default one may have been another before.
        let is_known = written.as_str() != NO_OBJECT;
        for item in earlier.iter().filter(|item| is_known && **item != written) {
            present(service.delete(item).await)?;
        }
        Ok(())
    }

    pub(super) async fn remove(&self, name: &str) -> Result<(), KeyringError> {
        let service = self.service().await?;
        for item in service.items_of(name).await? {
            present(service.delete(&item).await)?;
        }
        // Services give the same answer for an item that is gone and for a method that they do not have.
        let (unlocked, locked) = service.search(&HashMap::from([APPLICATION, (KEY, name)])).await?;
        if unlocked.is_empty() && locked.is_empty() {
            return Ok(());
        }
        Err(KeyringError::Call { call: "Delete", problem: "the item is still there".to_owned() })
    }

    pub(super) async fn names(&self) -> Result<Vec<String>, KeyringError> {
        let service = self.service().await?;
        service.unlock_default_collection().await?;
        let mut names = Vec::new();
        for item in service.items(&HashMap::from([APPLICATION])).await? {
            let attributes = present(service.attributes(&item).await.map(Some))?;
            names.extend(attributes.and_then(|mut attributes| attributes.remove(KEY)));
        }
        Ok(names)
    }

    /// The labels of the collections that are locked. Some services do not show their items.
    pub(super) async fn locked_collections(&self) -> Result<Vec<String>, KeyringError> {
        let service = self.service().await?;
        let mut labels = Vec::new();
        for collection in service.collections().await? {
            if present(service.is_locked(&collection).await.map(Some))? == Some(true) {
                labels.push(service.label(&collection).await?);
            }
        }
        Ok(labels)
    }
}

/// The outcome for an item that another process may have removed meanwhile.
fn present<T>(outcome: Result<Option<T>, KeyringError>) -> Result<Option<T>, KeyringError> {
    match outcome {
        Err(KeyringError::NoObject { .. }) => Ok(None),
        outcome => outcome,
    }
}

/// A secret on its way: the session, the parameters of its algorithm, the content, and the type of the content.
type WireSecret = (OwnedObjectPath, Vec<u8>, Vec<u8>, String);

/// A connection to the service, with a session.
#[derive(Debug)]
struct SecretService {
    bus: Connection,
    session: OwnedObjectPath,
    may_prompt: bool,
}

impl SecretService {
    async fn connect(addresses: &BusAddresses, may_prompt: bool) -> Result<Self, KeyringError> {
        let bus = timeout(CALL_TIMEOUT, addresses.connect()).await;
        let bus =
            bus.map_err(|_| KeyringError::Timeout { call: "the connection", limit: CALL_TIMEOUT })??;
        // The session is not encrypted: the bus is a Unix socket of this user on this machine, and a program that could read
        // it could ask the service for the items. So no second crypto library is needed.
        let argument = ("plain", Value::from(""));
        let (_, session): (OwnedValue, OwnedObjectPath) =
            call(&bus, SERVICE_PATH, SERVICE, "OpenSession", &argument).await?;
        Ok(Self { bus, session, may_prompt })
    }

    /// The items with this name.
    async fn items_of(&self, name: &str) -> Result<Vec<OwnedObjectPath>, KeyringError> {
        self.items(&HashMap::from([APPLICATION, (KEY, name)])).await
    }

    /// The items with these attributes, unlocked.
    async fn items(&self, attributes: &HashMap<&str, &str>) -> Result<Vec<OwnedObjectPath>, KeyringError> {
        let (mut items, locked) = self.search(attributes).await?;
        if !locked.is_empty() {
            self.unlock(&locked).await?;
            items.extend(locked);
        }
        if items.is_empty() && self.unlock_default_collection().await? {
            (items, _) = self.search(attributes).await?;
        }
        Ok(items)
    }

    /// Unlocks the collection of new items: some services do not show the items of a locked one. Returns whether it was
    /// locked.
    async fn unlock_default_collection(&self) -> Result<bool, KeyringError> {
        let Some(collection) = self.default_collection().await? else { return Ok(false) };
        let is_locked = self.is_locked(&collection).await?;
        if is_locked {
            self.unlock(&[collection]).await?;
        }
        Ok(is_locked)
    }

    async fn collections(&self) -> Result<Vec<OwnedObjectPath>, KeyringError> {
        let collections = self.property(SERVICE_PATH, SERVICE, "Collections").await?;
        Vec::try_from(collections).map_err(|_| unexpected("Collections"))
    }

    /// The label of a collection, otherwise its path.
    async fn label(&self, collection: &OwnedObjectPath) -> Result<String, KeyringError> {
        let label = present(self.property(collection.as_str(), COLLECTION, "Label").await.map(Some))?;
        let label = label.and_then(|label| String::try_from(label).ok()).filter(|label| !label.is_empty());
        Ok(label.map_or_else(|| collection.to_string(), |label| shortened(&label)))
    }

    /// The items with these attributes: the unlocked ones, and the locked ones.
    async fn search(
        &self,
        attributes: &HashMap<&str, &str>,
    ) -> Result<(Vec<OwnedObjectPath>, Vec<OwnedObjectPath>), KeyringError> {
        self.call(SERVICE_PATH, SERVICE, "SearchItems", &(attributes,)).await
    }

    async fn default_collection(&self) -> Result<Option<OwnedObjectPath>, KeyringError> {
        let collection: OwnedObjectPath =
            self.call(SERVICE_PATH, SERVICE, "ReadAlias", &("default",)).await?;
        Ok(Some(collection).filter(|collection| collection.as_str() != NO_OBJECT))
    }

    /// The collection for new items.
    async fn collection(&self) -> Result<OwnedObjectPath, KeyringError> {
        self.default_collection().await?.ok_or(KeyringError::NoCollection)
    }

    async fn is_locked(&self, collection: &OwnedObjectPath) -> Result<bool, KeyringError> {
        let locked = self.property(collection.as_str(), COLLECTION, "Locked").await?;
        bool::try_from(locked).map_err(|_| unexpected("Locked"))
    }

    async fn unlock(&self, objects: &[OwnedObjectPath]) -> Result<(), KeyringError> {
        // A service may show the prompt at once, so it is not even asked.
        if !self.may_prompt {
            return Err(KeyringError::Locked);
        }
        let (_, prompt): (Vec<OwnedObjectPath>, OwnedObjectPath) =
            self.call(SERVICE_PATH, SERVICE, "Unlock", &(objects,)).await?;
        self.complete(&prompt).await
    }

    async fn secret(&self, item: &OwnedObjectPath) -> Result<Option<SecretDocument>, KeyringError> {
        let ((_, _, content, _),): (WireSecret,) =
            self.call(item.as_str(), ITEM, "GetSecret", &(&self.session,)).await?;
        Ok(Some(Zeroizing::new(content)))
    }

    async fn attributes(&self, item: &OwnedObjectPath) -> Result<HashMap<String, String>, KeyringError> {
        let attributes = self.property(item.as_str(), ITEM, "Attributes").await?;
        HashMap::try_from(attributes).map_err(|_| unexpected("Attributes"))
    }

    /// Creates the item of this name, or replaces it. Returns its path, or [`NO_OBJECT`] if the user was asked first.
    async fn create(&self, name: &str, content: &[u8]) -> Result<OwnedObjectPath, KeyringError> {
        self.unlock_default_collection().await?;
        let collection = self.collection().await?;
        let attributes = HashMap::from([APPLICATION, (KEY, name)]);
        let properties = HashMap::from([
            ("org.freedesktop.Secret.Item.Label", Value::from("portcullis login")),
            ("org.freedesktop.Secret.Item.Attributes", Value::from(attributes)),
        ]);
        let secret = (&self.session, [0_u8; 0].as_slice(), content, "application/json");
        let (item, prompt): (OwnedObjectPath, OwnedObjectPath) =
            self.call(collection.as_str(), COLLECTION, "CreateItem", &(properties, secret, true)).await?;
        self.complete(&prompt).await?;
        Ok(item)
    }

    async fn delete(&self, item: &OwnedObjectPath) -> Result<Option<()>, KeyringError> {
        let prompt: OwnedObjectPath = self.call(item.as_str(), ITEM, "Delete", &()).await?;
        self.complete(&prompt).await.map(Some)
    }

    /// Shows a prompt, if the service needs one, and waits for the user.
    async fn complete(&self, prompt: &OwnedObjectPath) -> Result<(), KeyringError> {
        if prompt.as_str() == NO_OBJECT {
            return Ok(());
        }
        if !self.may_prompt {
            return Err(KeyringError::Locked);
        }
        let subscribed = async {
            let proxy = Proxy::new(&self.bus, DESTINATION, prompt.as_str(), PROMPT).await?;
            // Before the prompt is shown: its answer must not be missed.
            proxy.receive_signal("Completed").await
        };
        let mut completed = bounded("Completed", subscribed).await?;
        // Without the identifier of a window: this is a command.
        let () = self.call(prompt.as_str(), PROMPT, "Prompt", &("",)).await?;
        let Ok(signal) = timeout(PROMPT_TIMEOUT, completed.next()).await else {
            let dismissed: Result<(), _> = self.call(prompt.as_str(), PROMPT, "Dismiss", &()).await;
            dismissed.ok();
            return Err(KeyringError::PromptTimeout(PROMPT_TIMEOUT));
        };
        let signal = signal.ok_or_else(|| unexpected("Completed"))?;
        let answer: Result<(bool, OwnedValue), _> = signal.body().deserialize();
        let (is_dismissed, _) = answer.map_err(|_| unexpected("Completed"))?;
        if is_dismissed { Err(KeyringError::Dismissed) } else { Ok(()) }
    }

    async fn property(
        &self,
        object: &str,
        interface: &str,
        name: &'static str,
    ) -> Result<OwnedValue, KeyringError> {
        self.call(object, PROPERTIES, "Get", &(interface, name)).await
    }

    async fn call<R: DeserializeOwned + Type>(
        &self,
        path: &str,
        interface: &str,
        method: &'static str,
        argument: &(impl serde::Serialize + DynamicType),
    ) -> Result<R, KeyringError> {
        call(&self.bus, path, interface, method, argument).await
    }
}

async fn call<R: DeserializeOwned + Type>(
    bus: &Connection,
    path: &str,
    interface: &str,
    method: &'static str,
    argument: &(impl serde::Serialize + DynamicType),
) -> Result<R, KeyringError> {
    let answer =
        bounded(method, bus.call_method(Some(DESTINATION), path, Some(interface), method, argument)).await?;
    // The cause could quote a secret.
    answer.body().deserialize().map_err(|_| unexpected(method))
}

/// Ends by the deadline, and says what a failure means.
async fn bounded<T>(
    call: &'static str,
    work: impl Future<Output = zbus::Result<T>>,
) -> Result<T, KeyringError> {
    let outcome = timeout(CALL_TIMEOUT, work).await;
    outcome.map_err(|_| KeyringError::Timeout { call, limit: CALL_TIMEOUT })?.map_err(|error| {
        let problem = shortened(&error.to_string());
        let zbus::Error::MethodError(name, ..) = &error else { return KeyringError::Call { call, problem } };
        match name.as_str() {
            "org.freedesktop.DBus.Error.ServiceUnknown" | "org.freedesktop.DBus.Error.NameHasNoOwner" => {
                KeyringError::NoService
            }
            "org.freedesktop.Secret.Error.IsLocked" => KeyringError::Locked,
            "org.freedesktop.Secret.Error.NoSuchObject"
            | "org.freedesktop.DBus.Error.UnknownObject"
            // gnome-keyring's answer for an object that does not exist
            | "org.freedesktop.DBus.Error.UnknownMethod" => KeyringError::NoObject { call },
            _ => KeyringError::Call { call, problem },
        }
    })
}

fn unexpected(call: &'static str) -> KeyringError {
    KeyringError::Call {
        call,
        problem: "the service's answer has another form than the specification's".to_owned(),
    }
}

#[cfg(test)]
mod tests;
