package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"
)

// version is set by the linker in a release (-X main.version=v1.2.3).
var version string

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

// versionLine names the version and what it was built from and with.
func versionLine() string {
	v, commit := built()
	return fmt.Sprintf("sluice %s (commit %s, %s, %s/%s)", v, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// noCommit is the commit of builds outside of a repository, or with
// -buildvcs=false: they do not tell it.
const noCommit = "unknown"

// built is the version, and the commit it was built from.
func built() (v, commit string) {
	v, commit = version, noCommit
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" && info.Main.Version != "" && info.Main.Version != "(devel)" {
			v = info.Main.Version
		}
		commit = commitOf(info.Settings)
	}
	if v == "" {
		v = "development"
	}
	return v, commit
}

// commitOf reads the commit from the settings of a build.
func commitOf(settings []debug.BuildSetting) string {
	commit, dirty := noCommit, ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			commit = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = ", modified"
		}
	}
	if commit == noCommit {
		return commit
	}
	return commit + dirty
}

// shells are those that there is completion for.
var shells = []string{"bash", "zsh", "fish"}

func shellName(_ *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return errors.New("name a shell: bash, zsh or fish")
	case len(args) > 1:
		return fmt.Errorf("unexpected argument %q: name one shell", args[1])
	case !slices.Contains(shells, args[0]):
		return fmt.Errorf("there is no completion for %q; name a shell: bash, zsh or fish", args[0])
	}
	return nil
}

func newCompletion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes commands and flags in a shell",
		Example: `  source <(sluice completion bash)
  sluice completion zsh > "${fpath[1]}/_sluice"
  sluice completion fish > ~/.config/fish/completions/sluice.fish`,
		ValidArgs: shells,
		Args:      usage(shellName),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			default:
				return root.GenFishCompletion(out, true)
			}
		},
	}
}
