package node

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Security is how members prove to each other that they are members. Either Secret is
// set, or the three files, or nothing: then whoever reaches the port is one, and it should
// be on the loopback interface.
type Security struct {
	// Secret is what all members have. It is never sent: a key follows from it, the same for
	// all, and connections are by TLS between holders of that key.
	Secret string
	// Cert and Key are the files of the member's certificate, CA that of the authorities of
	// all members. They are read anew for each connection, so that they can be replaced.
	Cert, Key, CA string
}

var (
	errOtherSecret = errors.New("the other side does not have the secret of this cluster (--cluster-secret-file)")
	errNoPeerCert  = errors.New("the other side presents no certificate")
)

// credentials are those with which to serve (listen), and to call the member at an address.
type secrets struct {
	server func() credentials.TransportCredentials
	client func(address string) credentials.TransportCredentials
	mark   string // of the record: members with the same can talk to each other
}

func (s Security) secrets(cluster string) (secrets, error) {
	switch {
	case s.Secret != "":
		return secretCredentials(s.Secret, cluster)
	case s.Cert != "":
		return s.fileCredentials()
	}
	return secrets{
		server: insecure.NewCredentials,
		client: func(string) credentials.TransportCredentials { return insecure.NewCredentials() },
	}, nil
}

// secretRounds makes it dear to try out secrets against a member's public key, which
// whoever connects can see. It takes a tenth of a second once.
const secretRounds = 200_000

// secretCredentials are those of holders of a secret: TLS 1.3 in which both sides present
// the public key that follows from it. Certificates are only its envelope; their dates do
// not count, so that clocks do not matter.
func secretCredentials(secret, cluster string) (secrets, error) {
	seed, err := pbkdf2.Key(sha256.New, secret, []byte("sluice cluster "+cluster), secretRounds, ed25519.SeedSize)
	if err != nil {
		return secrets{}, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	public := key.Public().(ed25519.PublicKey)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sluice"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		return secrets{}, err
	}
	conf := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:   tls.RequireAnyClientCert,
		// The key is compared in place of names, authorities and dates.
		InsecureSkipVerify: true,
		VerifyConnection: func(c tls.ConnectionState) error {
			if len(c.PeerCertificates) == 0 {
				return errNoPeerCert
			}
			theirs, ok := c.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
			if !ok || !bytes.Equal(theirs, public) {
				return errOtherSecret
			}
			return nil
		},
		SessionTicketsDisabled: true,
	}
	sum := sha256.Sum256(append([]byte("sluice cluster record "), public...))
	return secrets{
		mark:   "secret " + hex.EncodeToString(sum[:16]),
		server: func() credentials.TransportCredentials { return credentials.NewTLS(conf) },
		client: func(string) credentials.TransportCredentials {
			c := conf.Clone()
			c.ServerName = "sluice"
			return credentials.NewTLS(c)
		},
	}, nil
}

// fileCredentials are by certificates of the members' authority.
func (s Security) fileCredentials() (secrets, error) {
	load := func() (tls.Certificate, *x509.CertPool, error) {
		cert, err := tls.LoadX509KeyPair(s.Cert, s.Key)
		if err != nil {
			return cert, nil, fmt.Errorf("--cluster-tls-cert-file, --cluster-tls-key-file: %w", err)
		}
		pem, err := os.ReadFile(s.CA)
		if err != nil {
			return cert, nil, fmt.Errorf("--cluster-tls-ca-file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return cert, nil, fmt.Errorf("--cluster-tls-ca-file: %s has no certificate", s.CA)
		}
		return cert, pool, nil
	}
	if _, _, err := load(); err != nil {
		return secrets{}, err
	}
	server := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, pool, err := load()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
				Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
			}, nil
		},
	}
	return secrets{
		mark:   "tls",
		server: func() credentials.TransportCredentials { return credentials.NewTLS(server) },
		client: func(address string) credentials.TransportCredentials {
			cert, pool, err := load()
			if err != nil {
				return refusing{insecure.NewCredentials(), err}
			}
			host, _, _ := net.SplitHostPort(address)
			return credentials.NewTLS(&tls.Config{
				MinVersion: tls.VersionTLS12, ServerName: host,
				Certificates: []tls.Certificate{cert}, RootCAs: pool,
			})
		},
	}, nil
}

// refusing fails each connection with an error.
type refusing struct {
	credentials.TransportCredentials
	err error
}

// ClientHandshake is of credentials.TransportCredentials.
func (r refusing) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, r.err
}

// Clone is of credentials.TransportCredentials.
func (r refusing) Clone() credentials.TransportCredentials { return r }

// telling tells of handshakes that fail, which grpc-go keeps to itself.
type telling struct {
	credentials.TransportCredentials
	failed func(from net.Addr, err error)
}

// ServerHandshake is of credentials.TransportCredentials.
func (t telling) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, info, err := t.TransportCredentials.ServerHandshake(c)
	if err != nil {
		t.failed(c.RemoteAddr(), err)
	}
	return out, info, err
}

// Clone is of credentials.TransportCredentials.
func (t telling) Clone() credentials.TransportCredentials {
	return telling{t.TransportCredentials.Clone(), t.failed}
}
