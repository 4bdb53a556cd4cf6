//! `portcullis login`, `credential` and `logout` with `--credential-store=keyring`: a real `gnome-keyring-daemon` on a D-Bus
//! of its own for each test, and services that do not behave.
//!
//! The programs get no environment but that of the test: no keyring of the user who runs it.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test program")]

mod desktop;
mod provider;
mod services;

use std::process::ExitCode;
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};

use desktop::{Desktop, Input};
use provider::Provider;

const TARGET: &str = "keyring";

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    match testkit::real::skip_if_absent(TARGET, desktop::absent(), trials()) {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(failure) => failure,
    }
}

fn trials() -> Vec<Trial> {
    fn trial<F: Future<Output = ()> + 'static>(name: &str, test: fn() -> F) -> Trial {
        Trial::test(name, move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(test());
            Ok::<(), Failed>(())
        })
    }
    vec![
        trial("one_login_serves_other_processes", one_login_serves),
        trial("a_bus_in_the_background_is_accepted", background_bus),
        trial("the_first_address_that_answers_is_used", address_list),
        trial("twenty_at_once_cause_one_login", twenty_at_once),
        trial("locks_are_the_same_for_all_cache_directories", locks_ignore_the_directory),
        trial("logout_removes_the_item_and_revokes", logout_removes),
        trial("logout_of_all_empties_both_stores", logout_of_all),
        trial("logout_takes_the_store_of_its_flag_and_names_the_other", store_of_the_flag),
        trial("logout_says_that_it_waits", waiting_logout),
        trial("a_prompt_that_is_dismissed_removes_nothing", dismissed_logout),
        trial("an_item_that_stays_is_an_error_and_its_token_is_revoked", kept_item),
        trial("an_interrupted_prompt_leaves_the_files", interrupted_prompt),
        trial("logout_of_all_names_locked_collections", locked_collection),
        trial("a_login_that_cannot_be_kept_is_an_error_and_is_revoked", unkept_login),
        trial("a_login_or_certificate_without_locks_names_the_cause", no_locks),
        trial("a_locked_keyring_is_an_error_where_no_prompt_is_allowed", locked),
        trial("a_prompt_unlocks_the_keyring", prompted),
        trial("a_dismissed_prompt_is_an_error", dismissed),
        trial("a_damaged_item_is_named_and_replaced", damaged),
        trial("no_session_bus_is_an_error", no_bus),
        trial("no_service_is_an_error", no_service),
        trial("a_service_that_never_answers_ends_by_the_deadline", silent),
    ]
}

async fn one_login_serves() {
    let (desktop, provider) = (Desktop::with_keyring().await, Provider::start().await);
    let login = desktop.login(&provider, &[]).await;
    assert!(login.error.contains("portcullis: logged in as alice\n"), "{}", login.error);
    login.succeeded();
    assert_eq!(provider.counts(), [("/device", 1), ("/token", 1), ("/revoke", 0)]);
    let kubeconfig = std::fs::read_to_string(desktop.path("kubeconfig")).unwrap();
    assert!(kubeconfig.contains("--credential-store=keyring"), "{kubeconfig}");
    for _ in 0..2 {
        let printed = desktop.credential(&provider, Input::Closed).await.succeeded();
        assert!(printed.contains(&provider.token(0)), "{printed}");
    }
    assert_eq!(provider.counts(), [("/device", 1), ("/token", 1), ("/revoke", 0)]);
    let items = desktop.items().await;
    assert_eq!(items.len(), 1);
    let item: serde_json::Value = serde_json::from_str(&items[0]).unwrap();
    assert_eq!((&item["version"], &item["refreshToken"]), (&1.into(), &"refresh-0".into()));
    assert!(desktop.cached_files().is_empty(), "only locks are files");
}

async fn background_bus() {
    let (desktop, provider) = (Desktop::with_daemon().await, Provider::start().await);
    desktop.start_keyring().await;
    desktop.login(&provider, &[]).await.succeeded();
    desktop.credential(&provider, Input::Closed).await.succeeded();
    assert_eq!(provider.counts(), [("/device", 1), ("/token", 1), ("/revoke", 0)]);
}

async fn address_list() {
    let (mut desktop, provider) = (Desktop::with_keyring().await, Provider::start().await);
    let list = format!("unix:path=/nonexistent/bus;{}", desktop.address);
    desktop.set_address(Some(&list));
    desktop.login(&provider, &[]).await.succeeded();
    assert_eq!(desktop.items().await.len(), 1);
}

async fn locks_ignore_the_directory() {
    let (desktop, provider) = (Desktop::with_keyring().await, Provider::start().await);
    let directories = [["--cache-dir=a"], ["--cache-dir=b"]];
    let all = (0..20).map(|number| {
        desktop.credential_with(&provider, Input::Terminal, &directories[number % directories.len()])
    });
    for finished in futures_util::future::join_all(all).await {
        assert!(finished.succeeded().contains(&provider.token(0)));
    }
    assert_eq!(provider.counts(), [("/device", 1), ("/token", 1), ("/revoke", 0)]);
}

async fn twenty_at_once() {
    let (desktop, provider) = (Desktop::with_keyring().await, Provider::start().await);
    let all = (0..20).map(|_| desktop.credential(&provider, Input::Terminal));
    for finished in futures_util::future::join_all(all).await {
        assert!(finished.succeeded().contains(&provider.token(0)));
    }
    assert_eq!(provider.counts(), [("/device", 1), ("/token", 1), ("/revoke", 0)]);
    assert_eq!(desktop.items().await.len(), 1);
}

async fn logout_removes() {
    let (desktop, provider) = (Desktop::with_keyring().await, Provider::start().await);
    desktop.login(&provider, &[]).await.succeeded();
    let printed = desktop.run(&["logout", "--kubeconfig=kubeconfig"], Input::Closed).await.succeeded();
    assert!(printed.contains("the cached tokens are removed"), "{printed}");
    assert_eq!(desktop.items().await, [""; 0]);
    assert_eq!(provider.counts(), [("/device", 1), ("/token", 1), ("/revoke", 1)]);
    let error = desktop.credential(&provider, Input::Closed).await.failed();
    assert!(error.contains("must not ask for a login"), "{error}");
    let printed = desktop.run(&["logout", "--kubeconfig=kubeconfig"], Input::Closed).await.succeeded();
    assert!(printed.contains("not logged in"), "{printed}");
}

async fn logout_of_all() {
    let (desktop, provider) = (Desktop::with_keyring().await, Provider::start().await);
    desktop.login(&provider, &["--user=a"]).await.succeeded();
    desktop.login(&provider, &["--user=b"]).await.succeeded();
    let file = desktop.login_with(&provider, "file", &["--user=c", "--name=of-file"]).await;
    file.succeeded();
    assert_eq!(desktop.items().await.len(), 2);
    let printed = desktop.run(&["logout", "--all"], Input::Closed).await.succeeded();
    assert!(printed.contains("3 cached logins and 0 client certificates removed"), "{printed}");
    assert_eq!((desktop.items().await.len(), provider.counts()[2]), (0, ("/revoke", 3)));
    assert!(desktop.cached_files().is_empty());
}

async fn store_of_the_flag() {
    let (desktop, provider) = (Desktop::with_keyring().await, Provider::start().await);
    desktop.login(&provider, &[]).await.succeeded();
    desktop.login_with(&provider, "file", &[]).await.succeeded();
    let of_keyring = ["logout", "--kubeconfig=kubeconfig", "--credential-store=keyring"];
    let finished = desktop.run(&of_keyring, Input::Closed).await;
    assert!(finished.error.contains("portcullis logout --credential-store=file"), "{}", finished.error);
    finished.succeeded();
    assert_eq!((desktop.items().await.len(), desktop.cached_files().len()), (0, 1));
    desktop.login(&provider, &["--name=other"]).await.succeeded();
    let of_context = ["logout", "--kubeconfig=kubeconfig", "--context=cluster.test"];
    let finished = desktop.run(&of_context, Input::Closed).await;
    assert!(finished.error.contains("portcullis logout --credential-store=keyring"), "{}", finished.error);
    finished.succeeded();
    assert_eq!((desktop.items().await.len(), desktop.cached_files().len()), (1, 0));
    assert_eq!(provider.counts()[2], ("/revoke", 2));
}

async fn waiting_logout() {
    let (desktop, provider) = (Desktop::with_keyring().await, Provider::start().await);
    desktop.login(&provider, &[]).await.succeeded();
    let lock = std::fs::File::options().write(true).open(&desktop.lock_files()[0]).unwrap();
    lock.lock().unwrap();
    let arguments = ["logout", "--kubeconfig=kubeconfig", "--login-timeout=1s"];
    let error = desktop.run(&arguments, Input::Closed).await.failed();
    for part in
        ["waiting for the login of another process", "another process logs in, and has not ended within 1s"]
    {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(desktop.items().await.len(), 1);
}

async fn dismissed_logout() {
    let (desktop, provider) = (Desktop::new().await, Provider::start().await);
    let service = services::Prompting::start(&desktop.address, services::Answer::Unlocks).await;
    desktop.login(&provider, &[]).await.succeeded();
    for arguments in [["logout", "--kubeconfig=kubeconfig"], ["logout", "--all"]] {
        service.lock();
        service.answer_once(services::Answer::Dismisses);
        let error = desktop.run(&arguments, Input::Closed).await.failed();
        assert!(error.contains("the prompt to unlock it was dismissed"), "{error}");
        assert_eq!((service.secret().is_some(), provider.counts()[2]), (true, ("/revoke", 0)));
    }
    desktop.run(&["logout", "--kubeconfig=kubeconfig"], Input::Closed).await.succeeded();
    assert_eq!((service.secret(), provider.counts()[2]), (None, ("/revoke", 1)));
}

async fn kept_item() {
    let (desktop, provider) = (Desktop::new().await, Provider::start().await);
    let service = services::Prompting::start(&desktop.address, services::Answer::Unlocks).await;
    desktop.login(&provider, &[]).await.succeeded();
    service.keep_items();
    let error = desktop.run(&["logout", "--kubeconfig=kubeconfig"], Input::Closed).await.failed();
    assert!(error.contains("the item is still there"), "{error}");
    assert_eq!(provider.counts()[2], ("/revoke", 1));
}

async fn interrupted_prompt() {
    let (desktop, provider) = (Desktop::new().await, Provider::start().await);
    let service = services::Prompting::start(&desktop.address, services::Answer::Never).await;
    desktop.login_with(&provider, "file", &[]).await.succeeded();
    let code = desktop.interrupt(&["logout", "--all"], || service.prompts() == 1).await;
    assert_eq!((code, desktop.cached_files().len()), (Some(130), 1));
    assert_eq!(provider.counts()[2], ("/revoke", 0));
}

async fn locked_collection() {
    let (desktop, provider) = (Desktop::new().await, Provider::start().await);
    let service = services::Prompting::start(&desktop.address, services::Answer::Unlocks).await;
    desktop.login(&provider, &[]).await.succeeded();
    let finished = desktop.run(&["logout", "--all"], Input::Closed).await;
    assert!(
        finished.error.contains("the collection \"Work\" of the keyring is locked"),
        "{}",
        finished.error
    );
    let printed = finished.succeeded();
    assert!(printed.contains("1 cached logins and 0 client certificates removed"), "{printed}");
    assert_eq!(service.secret(), None);
}

async fn unkept_login() {
    let (desktop, provider) = (Desktop::new().await, Provider::start().await);
    let service = services::Prompting::start(&desktop.address, services::Answer::Unlocks).await;
    service.refuse_writes();
    let error = desktop.login(&provider, &[]).await.failed();
    assert!(error.contains("CreateItem"), "{error}");
    assert_eq!(provider.counts(), [("/device", 1), ("/token", 1), ("/revoke", 1)]);
    assert!(!desktop.path("kubeconfig").exists());
}

async fn no_locks() {
    let (desktop, provider) = (Desktop::new().await, Provider::start().await);
    std::fs::write(desktop.path(".cache"), "not a directory").unwrap();
    let more = ["--client-certificate", "--server=https://cluster.test"];
    let error = desktop.credential_with(&provider, Input::Closed, &more).await.failed();
    assert!(error.contains("--client-certificate needs the login cache: cannot use"), "{error}");
    let error = desktop.credential(&provider, Input::Terminal).await.failed();
    assert!(error.contains("cannot use") && error.contains("set XDG_CACHE_HOME"), "{error}");
    assert_eq!(provider.counts()[0], ("/device", 0));
}

async fn locked() {
    let (desktop, provider) = (Desktop::with_keyring().await, Provider::start().await);
    desktop.lock().await;
    let empty = desktop.credential(&provider, Input::Closed).await.failed();
    desktop.unlock_by_restart().await;
    desktop.login(&provider, &[]).await.succeeded();
    desktop.lock().await;
    let before = provider.counts();
    let full = desktop.credential(&provider, Input::Closed).await.failed();
    for error in [empty, full] {
        for part in ["the keyring is locked", "must not ask to unlock it", "fix: unlock the keyring"] {
            assert!(error.contains(part), "{error}");
        }
    }
    assert_eq!(provider.counts(), before, "the provider is not asked");
}

async fn prompted() {
    let (desktop, provider) = (Desktop::new().await, Provider::start().await);
    let service = services::Prompting::start(&desktop.address, services::Answer::Unlocks).await;
    desktop.login(&provider, &[]).await.succeeded();
    assert_eq!((service.prompts(), service.secret().is_some()), (1, true));
    service.lock();
    let error = desktop.credential(&provider, Input::Closed).await.failed();
    assert!(error.contains("the keyring is locked") && service.prompts() == 1, "{error}");
    let printed = desktop.credential(&provider, Input::Terminal).await.succeeded();
    assert!(printed.contains(&provider.token(0)) && service.prompts() == 2, "{printed}");
}

async fn dismissed() {
    let (desktop, provider) = (Desktop::new().await, Provider::start().await);
    let service = services::Prompting::start(&desktop.address, services::Answer::Dismisses).await;
    let error = desktop.login(&provider, &[]).await.failed();
    assert!(error.contains("the prompt to unlock it was dismissed"), "{error}");
    assert_eq!((service.prompts(), provider.counts()[0]), (1, ("/device", 0)));
}

async fn damaged() {
    let (desktop, provider) = (Desktop::with_keyring().await, Provider::start().await);
    desktop.login(&provider, &[]).await.succeeded();
    for content in ["{\"version\":1,\"refreshToken\":\"refresh-0\"", "{\"version\":2}"] {
        desktop.replace_item(content).await;
        let error = desktop.credential(&provider, Input::Closed).await.failed();
        assert!(error.contains("warning: the login cache: the keyring's item"), "{error}");
    }
    desktop.login(&provider, &[]).await.succeeded();
    desktop.credential(&provider, Input::Closed).await.succeeded();
    assert_eq!(desktop.items().await.len(), 1);
}

async fn no_bus() {
    let (mut desktop, provider) = (Desktop::new().await, Provider::start().await);
    for address in [None, Some("unix:path=/nonexistent/bus"), Some("tcp:host=127.0.0.1,port=1"), Some("")] {
        desktop.set_address(address);
        for error in [
            desktop.credential(&provider, Input::Terminal).await.failed(),
            desktop.login(&provider, &[]).await.failed(),
            desktop.run(&["logout", "--all", "--credential-store=keyring"], Input::Closed).await.failed(),
        ] {
            let is_named = error.contains("there is no D-Bus session bus");
            assert!(is_named && error.contains("--credential-store=file"), "{address:?}: {error}");
        }
        let all = desktop.run(&["logout", "--all"], Input::Closed).await;
        assert!(all.error.contains("warning: the logins of one store are not removed"), "{}", all.error);
        all.succeeded();
    }
    assert_eq!(provider.counts()[0], ("/device", 0), "a login that cannot be kept is not begun");
}

async fn no_service() {
    let (desktop, provider) = (Desktop::new().await, Provider::start().await);
    let error = desktop.login(&provider, &[]).await.failed();
    assert!(
        error.contains("no service on the D-Bus session bus provides org.freedesktop.secrets"),
        "{error}"
    );
}

async fn silent() {
    let (desktop, provider) = (Desktop::new().await, Provider::start().await);
    let service = services::silent(&desktop.address).await;
    let begin = Instant::now();
    let error = desktop.credential(&provider, Input::Closed).await.failed();
    assert!(error.contains("OpenSession had no answer within 10s"), "{error}");
    // The deadline of one call, and the time of a slow machine.
    assert!(begin.elapsed() < testkit::TEST_TIMEOUT, "{:?}", begin.elapsed());
    drop(service);
}
