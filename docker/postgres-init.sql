-- Runs once, when the data volume is empty: creates a database and an owner for each of the two servers, so that neither
-- can access the other's tables. The passwords come from the environment, not from a file or a command line.
\getenv prefect_password PREFECT_DB_PASSWORD
\getenv mlflow_password MLFLOW_DB_PASSWORD

CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE DATABASE prefect OWNER prefect;
REVOKE CONNECT ON DATABASE prefect FROM PUBLIC;

CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE DATABASE mlflow OWNER mlflow;
REVOKE CONNECT ON DATABASE mlflow FROM PUBLIC;
