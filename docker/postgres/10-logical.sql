-- Lets wal2json in where the server keeps a list of output plugins. Minor releases of 2026 and later do; an older one
-- doesn't know the setting and would not start with it, so it is asked first.
SELECT count(*) > 0 AS has_list FROM pg_settings WHERE name = 'output_plugin_libraries' \gset
\if :has_list
ALTER SYSTEM SET output_plugin_libraries = 'pgoutput', 'test_decoding', 'wal2json';
SELECT pg_reload_conf();
\endif
