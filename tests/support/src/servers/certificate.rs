//! Certificates for servers, from a certificate authority of one set.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// What a server shows of itself, in PEM.
#[derive(Clone)]
pub(crate) struct Certificate {
    /// The certificate of the authority.
    pub(crate) authority: String,
    /// The server's certificate and its key.
    pub(crate) own: String,
}

impl Certificate {
    /// One for these names and addresses, good for so long from now on.
    pub(crate) fn new(names: &[String], lasts: Duration) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut authority = CertificateParams::default();
        // Of a name of its own: it is by names that servers and clients look for who signed.
        let name = format!("test authority {}", COUNT.fetch_add(1, Ordering::Relaxed));
        authority.distinguished_name.push(DnType::CommonName, name);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().expect("a key can be made");
        let signed = authority.self_signed(&authority_key).expect("an authority signs itself");
        let issuer = Issuer::new(authority, authority_key);

        let mut own = CertificateParams::new(names).expect("names for certificates are ASCII");
        own.distinguished_name.push(DnType::CommonName, "test server");
        let now = SystemTime::now();
        own.not_before = (now - Duration::from_secs(3600)).into();
        own.not_after = (now + lasts).into();
        let key = KeyPair::generate().expect("a key can be made");
        let own = own.signed_by(&key, &issuer).expect("the authority signs");
        Self { authority: signed.pem(), own: own.pem() + &key.serialize_pem() }
    }
}
