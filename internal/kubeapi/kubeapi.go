// Package kubeapi finds the API server of Kubernetes and makes the HTTP client that speaks
// to it, for all parts of sluice that do: credentials that are renewed while it runs,
// connections that fall silent, and what client-go logs.
package kubeapi

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
)

// LoadConfig finds the API server and the credentials: in the file, else in those that
// KUBECONFIG names, else those of the pod, else in the user's own file.
func LoadConfig(file string) (*rest.Config, error) {
	if file != "" {
		return clientcmd.BuildConfigFromFlags("", file)
	}
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		cfg, err := rest.InClusterConfig()
		if err != rest.ErrNotInCluster { //nolint:errorlint // it is returned as it is
			return cfg, err
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("this is no pod with a service account, and no kubeconfig names an API server: set --kubeconfig or KUBECONFIG")
	}
	return cfg, err
}

// namespaceFile is where a pod finds the name of its namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Namespace returns the namespace that belongs to what LoadConfig finds: that of the
// file's context, else the pod's. It is "default" where neither says one.
func Namespace(file string) (string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	if file == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		if b, err := os.ReadFile(namespaceFile); err == nil {
			return strings.TrimSpace(string(b)), nil
		}
	}
	namespace, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).Namespace()
	return namespace, err
}

// NewClient makes the HTTP client for cfg, which is changed. ping is how long an HTTP/2
// connection may be silent before the server is asked for a sign of life, which may take
// half as long.
func NewClient(cfg *rest.Config, userAgent string, ping time.Duration) (*http.Client, error) {
	cfg.UserAgent = userAgent
	cfg.Timeout = 0 // each request has one of its own
	cfg.QPS = -1    // who asks makes pauses
	cfg.WarningHandlerWithContext = rest.NoWarnings{}
	if cfg.Proxy == nil {
		// It is the default. With it the transport is not shared with other clients,
		// whose connections are theirs.
		cfg.Proxy = http.ProxyFromEnvironment
	}
	if file := cfg.BearerTokenFile; file != "" {
		// As it is, the file is read again each minute only, whatever the server answers.
		cfg.BearerToken, cfg.BearerTokenFile = "", ""
		cfg.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(file)))
	}
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	askForSignsOfLife(c.Transport, ping)
	return c, nil
}

// askForSignsOfLife sets these times, which are 30 s and 15 s otherwise, on the transport
// below the others.
func askForSignsOfLife(rt http.RoundTripper, after time.Duration) {
	for {
		switch t := rt.(type) {
		case *http.Transport:
			if t != http.DefaultTransport {
				t.HTTP2 = &http.HTTP2Config{SendPingTimeout: after, PingTimeout: after / 2}
			}
			return
		case utilnet.RoundTripperWrapper:
			rt = t.WrappedRoundTripper()
		default:
			return
		}
	}
}

// CloseIdle closes the connections that carry no request. One on which a request was given
// up is among them, so that the next one takes another.
func CloseIdle(c *http.Client) { utilnet.CloseIdleConnectionsFor(c.Transport) }

var redirectOnce sync.Once

// RedirectLog has client-go log where everything is logged and not to standard error.
// Its logger belongs to the process, so that the first one stays.
func RedirectLog(log *slog.Logger) {
	redirectOnce.Do(func() {
		klog.SetLogger(logr.FromSlogHandler(log.With("from", "client-go").Handler()))
	})
}
